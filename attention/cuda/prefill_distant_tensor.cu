// Attention of PoD's prompts on tensor cores (query_tile.cuh; arXiv:2412.02252): a block goes
// through the near keys with its own queries, and then through the distant ones with those of the
// group's lowest layer. Whether a query leaves its distant keys out is a matter of all heads of a
// KV head together, so where that may be a first kernel finds the share of the near keys in each.
#include "attention/cuda/prefill.h"
#include "attention/cuda/query_tile.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

/// Sinks and recent tokens, two runs of tiles.
template <int kTileKeys>
struct NearKeys {
  static constexpr bool kMayHideAll = true;

  int sinks;
  int recent;
  int sink_tiles;
  int first_recent;  ///< tile
  int count;

  /// Of queries first .. last. Where nothing is distant, `sinks` is all of them.
  __device__ NearKeys(int sinks_of_all, int recent_of_all, int first, int last)
      : sinks(min(sinks_of_all, last + 1)),
        recent(min(recent_of_all, last + 1)),
        sink_tiles((sinks + kTileKeys - 1) / kTileKeys),
        first_recent(max(sink_tiles, max(0, first + 1 - recent) / kTileKeys)),
        count(sink_tiles + max(0, last / kTileKeys + 1 - first_recent)) {}

  __device__ int Tile(int i) const { return i < sink_tiles ? i : first_recent + i - sink_tiles; }
  __device__ bool Passes(int query, int key) const {
    const bool ends_before = key + kTileKeys <= query + 1 - recent;
    return key >= query + kRowsOfWarp || (key >= sinks && ends_before);
  }
  __device__ bool CutsInto(int query, int key) const {
    const int last = key + kTileKeys - 1, last_query = query + kRowsOfWarp - 1;
    return last > query || (last >= sinks && last_query - key >= recent);
  }
  __device__ bool Hides(int /*half*/, int query, int key) const {
    return key > query || (key >= sinks && query - key >= recent);
  }
};

/// The tokens between them.
template <int kTileKeys>
struct DistantKeys {
  static constexpr bool kMayHideAll = true;

  int sinks;
  int recent;
  bool all_skip;  ///< all of the warp's queries leave them out
  bool skips[2];  ///< the lane's do
  int count;

  /// Of queries up to `last`.
  __device__ DistantKeys(const DeviceDistant& distant, int last)
      : sinks(distant.sinks),
        recent(distant.recent),
        all_skip(false),
        skips{false, false},
        count(last - recent < sinks ? 0 : (last - recent) / kTileKeys - sinks / kTileKeys + 1) {}

  __device__ int Tile(int i) const { return sinks / kTileKeys + i; }
  __device__ bool Passes(int query, int key) const {
    return all_skip || key > query + kRowsOfWarp - 1 - recent;
  }
  __device__ bool CutsInto(int query, int key) const {
    return key < sinks || query - (key + kTileKeys - 1) < recent || skips[0] || skips[1];
  }
  __device__ bool Hides(int half, int query, int key) const {
    return key < sinks || query - key < recent || skips[half];
  }
};

/// What a block works on: its queries of one head, those of the lowest layer, and both kinds of
/// keys.
template <int kMaxDim, bool kWithValues>
struct DistantTile {
  using Queries = QueryTile<kMaxDim, kWithValues>;

  const AttentionShape shape;
  const DeviceDistant distant;
  const int head;
  const int kv_head;
  const bool borrows;
  const PromptRows q, k, low_q, low_k;
  Queries queries;
  const NearKeys<Queries::kTileKeys> near_keys;
  DistantKeys<Queries::kTileKeys> distant_keys;

  __device__ DistantTile(const AttentionShape& s, const PromptTensors& t, int n,
                         const DeviceDistant& d, unsigned char* memory)
      : shape(s),
        distant(d),
        head(static_cast<int>(blockIdx.y)),
        kv_head(head / s.group_size()),
        borrows(d.borrows[kv_head] != 0),
        q(RowsOf(t.q, n, s.num_q_heads, head)),
        k(RowsOf(t.k, n, s.num_kv_heads, kv_head)),
        low_q(RowsOf(d.low_q, n, s.num_q_heads, head)),
        low_k(RowsOf(d.low_k, n, s.num_kv_heads, kv_head)),
        queries{RowsOf(t.v, n, s.num_kv_heads, kv_head), s.scale * kLog2E,
                // Those with the most keys come first.
                static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueryTileRows,
                reinterpret_cast<uint16_t*>(memory)},
        near_keys(borrows ? d.sinks : n, d.recent, queries.first, queries.end(n) - 1),
        distant_keys(d, queries.end(n) - 1) {}

  __device__ PromptRows RowsOf(const void* x, int n, int heads, int of_them) const {
    return {static_cast<const uint16_t*>(x), n, heads, of_them, shape.head_dim};
  }
  __device__ bool HasDistant(int token) const {
    return borrows && token < q.rows && token - distant.recent >= distant.sinks;
  }
  /// The log-sum-exps of a query's near and distant keys, with distant.shares.
  __device__ float* SharesOf(int token, int of_head) const {
    return distant.shares + 2 * (static_cast<size_t>(token) * shape.num_q_heads + of_head);
  }

  /// Of the near keys, or of the distant ones.
  __device__ void StoreSums(int which) {
    queries.EndSums();
    for (int half = 0; half < 2; ++half) {
      const int token = queries.TokenOf(half);
      if (token < q.rows && queries.c == 0) SharesOf(token, head)[which] = queries.LogSumExp(half);
    }
    queries.BeginAnew();
  }

  /// Every query head gives the near keys at least the share `skip`.
  __device__ bool Skips(int token) const {
    for (int h = 0; h < shape.group_size(); ++h) {
      const float* of_head = SharesOf(token, kv_head * shape.group_size() + h);
      if (!(1 / (1 + expf(of_head[1] - of_head[0])) >= distant.skip)) return false;
    }
    return true;
  }

  /// Finds the queries that leave their distant keys out, and counts those of a KV head once.
  __device__ void Skip() {
    const bool counts = head % shape.group_size() == 0 && queries.c == 0;
    bool need_none = true;
    for (int half = 0; half < 2; ++half) {
      const int token = queries.TokenOf(half);
      const bool has_distant = HasDistant(token);
      const bool skips = has_distant && distant.shares != nullptr && Skips(token);
      distant_keys.skips[half] = skips;
      need_none = need_none && (skips || !has_distant);
      const uint32_t skipped = __ballot_sync(kAllLanes, counts && skips);
      const uint32_t attended = __ballot_sync(kAllLanes, counts && has_distant && !skips);
      if (queries.lane != 0) continue;
      if (attended != 0) {
        atomicAdd(distant.counts, static_cast<unsigned long long>(__popc(attended)));
      }
      if (skipped != 0) {
        atomicAdd(distant.counts + 1, static_cast<unsigned long long>(__popc(skipped)));
      }
    }
    distant_keys.all_skip = __all_sync(kAllLanes, need_none);
  }
};

/// A block for each tile of queries (x) and query head (y).
template <int kMaxDim>
__global__ void __launch_bounds__(kQueryTileThreads, kMaxDim <= 64 ? 2 : 1)
    FindShares(AttentionShape shape, PromptTensors t, int n, DeviceDistant distant) {
  ZIGGURAT_SHARED_MEMORY(memory);
  DistantTile<kMaxDim, false> tile(shape, t, n, distant, memory);
  if (!tile.borrows || tile.distant_keys.count == 0) return;
  tile.queries.Attend(tile.q, tile.k, tile.near_keys);
  tile.StoreSums(0);
  tile.queries.Attend(tile.low_q, tile.low_k, tile.distant_keys);
  tile.StoreSums(1);
}

template <int kMaxDim>
__global__ void __launch_bounds__(kQueryTileThreads, kMaxDim <= 64 ? 2 : 1)
    AttendDistantTiles(AttentionShape shape, PromptTensors t, int n, DeviceDistant distant) {
  ZIGGURAT_SHARED_MEMORY(memory);
  DistantTile<kMaxDim, true> tile(shape, t, n, distant, memory);
  tile.queries.Attend(tile.q, tile.k, tile.near_keys);
  if (tile.borrows) {
    tile.Skip();
    tile.queries.Attend(tile.low_q, tile.low_k, tile.distant_keys);
  }
  tile.queries.EndSums();
  tile.queries.Store(tile.q, static_cast<uint16_t*>(t.out), t.lse);
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchTensorPrefillDistant(const AttentionShape& shape, const PromptTensors& tensors, int n,
                                const DeviceDistant& distant, cudaStream_t stream) {
  const dim3 grid{static_cast<unsigned>((n + kQueryTileRows - 1) / kQueryTileRows),
                  static_cast<unsigned>(shape.num_q_heads)};
  DeviceDistant with_shares = distant;
  if (distant.skip > 1) with_shares.shares = nullptr;  // no share is as large
  WithMaxDim(shape.head_dim, [&](auto max_dim) {
    const auto launch = [&](auto kernel, size_t shared_bytes) {
      Launch(kernel, grid, dim3{kQueryTileThreads}, shared_bytes, stream, shape, tensors, n,
             with_shares);
    };
    if (with_shares.shares != nullptr) {
      launch(FindShares<max_dim()>, QueryTile<max_dim(), false>::kSharedBytes);
    }
    launch(AttendDistantTiles<max_dim()>, QueryTile<max_dim()>::kSharedBytes);
  });
}

}  // namespace ziggurat::cuda

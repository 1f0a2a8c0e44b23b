// Attention that the keys of a prompt receive, on tensor cores: a warp has 32 keys in registers (16
// where heads are larger than 128), so that every query that comes from shared memory is multiplied
// with as many, and a block has those of eight warps. It goes through the queries in tiles, head by
// head, of which the next three are under way to shared memory while one is computed. Since the
// log-sum-exp of a query is known, its weights need neither a maximum nor a second pass; what those
// of a key add up to stays in registers until the end.
#include <algorithm>

#include "attention/cuda/prompt_tiles.cuh"
#include "attention/cuda/statistics.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int kThreads = kWarpsPerBlock * kWarp;
/// Of queries; one is computed. The keys come through them before.
constexpr int kStages = 4;

/// A warp's keys, of heads of up to kMaxDim channels, and what they have received.
template <int kMaxDim>
struct KeyTile {
  using Tile = PromptTile<kMaxDim>;
  static constexpr int kGroups = kMaxDim <= 128 ? 2 : 1;  ///< of sixteen keys
  static constexpr int kKeysOfWarp = kGroups * kRowsOfWarp;
  static constexpr int kKeys = kWarpsPerBlock * kKeysOfWarp;  ///< of the block
  static constexpr int kQueriesAtOnce = 16;
  static_assert(kKeys == kStages * Tile::kRows);

  const float scale;    ///< of scores, for powers of two
  const int rows;       ///< queries
  const int earlier;    ///< a query's token is its row and `earlier`
  const int first_key;  ///< of the warp's

  const int lane = LaneOfThread();
  const int r = lane / 4;
  const int c = lane % 4;

  uint32_t keys[kGroups][kMaxDim / 16][4] = {};
  float sums[kGroups][2] = {};  ///< keys r and r + 8 of each sixteen; this lane's share

  __device__ int KeyOf(int group, int half) const {
    return first_key + group * kRowsOfWarp + half * 8 + r;
  }

  /// The warp's keys, from a tile of which its own are the first.
  __device__ void Load(const uint16_t* tile) {
    const uint16_t* own_row = tile + lane % 16 * Tile::kStride + lane / 16 * 8;
    ZIGGURAT_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      ZIGGURAT_UNROLL
      for (int step = 0; step < kMaxDim / 16; ++step) {
        LoadMatrices(own_row + group * kRowsOfWarp * Tile::kStride + step * 16, keys[group][step]);
      }
    }
  }

  /// Adds what the queries of a tile give, the first of which is `query`.
  __device__ void Add(const uint16_t* tile, const float* lse, int query) {
    if (SeesNone(query, Tile::kRows)) return;
    if (query + Tile::kRows <= rows && first_key + kKeysOfWarp - 1 <= earlier + query) {
      ZIGGURAT_UNROLL_TWICE
      for (int first = 0; first < Tile::kRows; first += kQueriesAtOnce) {
        AddQueries<false>(tile, lse, query, first);
      }
      return;
    }

    for (int first = 0; first < Tile::kRows && query + first < rows; first += kQueriesAtOnce) {
      if (SeesNone(query + first, kQueriesAtOnce)) continue;
      AddQueries<true>(tile, lse, query, first);
    }
  }

 private:
  /// All of `count` queries are before the first key.
  __device__ bool SeesNone(int query, int count) const {
    return first_key > earlier + query + count - 1;
  }

  /// Rows first .. first + kQueriesAtOnce - 1 of the tile. kCut: some may be beyond the last query
  /// or before some of the keys.
  template <bool kCut>
  __device__ void AddQueries(const uint16_t* tile, const float* lse, int query, int first) {
    float dots[kQueriesAtOnce / 8][kGroups][4] = {};
    Multiply(tile + (first + lane % 8) * Tile::kStride + lane / 8 * 8, dots);
    ZIGGURAT_UNROLL
    for (int i = 0; i < kQueriesAtOnce / 8; ++i) {
      ZIGGURAT_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const int of_tile = first + i * 8 + 2 * c + odd;
        const float off = lse[of_tile] * kLog2E;
        ZIGGURAT_UNROLL
        for (int group = 0; group < kGroups; ++group) {
          ZIGGURAT_UNROLL
          for (int half = 0; half < 2; ++half) {
            float weight = Exp2(dots[i][group][2 * half + odd] * scale - off);
            if constexpr (kCut) {
              const int row = query + of_tile;
              if (row >= rows || KeyOf(group, half) > earlier + row) weight = 0;
            }
            sums[group][half] += weight;
          }
        }
      }
    }
  }

  /// dots[i][g]: products of the g-th sixteen keys with the i-th eight queries.
  __device__ void Multiply(const uint16_t* own_row,
                           float (&dots)[kQueriesAtOnce / 8][kGroups][4]) const {
    ZIGGURAT_UNROLL
    for (int step = 0; step < kMaxDim / 16; step += 2) {
      uint32_t b[kQueriesAtOnce / 8][4];
      ZIGGURAT_UNROLL
      for (int i = 0; i < kQueriesAtOnce / 8; ++i) {
        LoadMatrices(own_row + i * 8 * Tile::kStride + step * 16, b[i]);
      }
      ZIGGURAT_UNROLL
      for (int next = 0; next < 2; ++next) {
        ZIGGURAT_UNROLL
        for (int i = 0; i < kQueriesAtOnce / 8; ++i) {
          ZIGGURAT_UNROLL
          for (int group = 0; group < kGroups; ++group) {
            MultiplyAdd(keys[group][step + next], b[i][2 * next], b[i][2 * next + 1],
                        dots[i][group]);
          }
        }
      }
    }
  }
};

/// Tiles of queries and their log-sum-exps.
template <int kMaxDim>
constexpr size_t kSharedBytes = (sizeof(uint16_t) * PromptTile<kMaxDim>::kSize +
                                 sizeof(float) * PromptTile<kMaxDim>::kRows) *
                                kStages;

/// A block for each tile of keys (y; those with the most queries come first), row of the result and
/// part of that row's queries (x).   sums  [parts, rows of the result, end - begin]
template <int kMaxDim>
__global__ void __launch_bounds__(kThreads, 2)
    TileSums(AttentionShape shape, PromptTail tail, int begin, int end, bool query_heads, int parts,
             float* sums, size_t stride) {
  using Keys = KeyTile<kMaxDim>;
  using Tile = PromptTile<kMaxDim>;
  ZIGGURAT_SHARED_MEMORY(memory);
  auto* tiles = reinterpret_cast<uint16_t*>(memory);
  auto* lses = reinterpret_cast<float*>(tiles + kStages * Tile::kSize);
  const int thread = static_cast<int>(threadIdx.x), warp = WarpOfThread();
  const int heads = query_heads ? 1 : shape.group_size();
  const int results = query_heads ? shape.num_q_heads : shape.num_kv_heads;
  const int first_head = static_cast<int>(blockIdx.x) % results * heads;
  const int part = static_cast<int>(blockIdx.x) / results;
  const int key = begin + static_cast<int>(blockIdx.y) * Keys::kKeys;
  Keys keys{shape.scale * kLog2E, tail.rows, tail.n - tail.rows, key + warp * Keys::kKeysOfWarp};

  // Queries before the first key see none of the keys. Of the tiles of the others, those of all
  // heads in a row, the block takes its part.
  const int first_query = max(0, key - keys.earlier) / Tile::kRows * Tile::kRows;
  const int tiles_of_head = (tail.rows - first_query + Tile::kRows - 1) / Tile::kRows;
  const int first_tile = heads * tiles_of_head * part / parts;
  const int count = heads * tiles_of_head * (part + 1) / parts - first_tile;
  struct Place {
    int head, query;
  };
  const auto step = [&](Place& place) {
    place.query += Tile::kRows;
    if (place.query < tail.rows) return;
    place = {place.head + 1, first_query};
  };
  Place now = {first_head + first_tile / tiles_of_head,
               first_query + first_tile % tiles_of_head * Tile::kRows};
  Place next = now;

  AsyncCopies copies;
  const auto copy_next = [&](int i) {
    if (i < count) {
      const PromptRows q{static_cast<const uint16_t*>(tail.q_rows), tail.rows, shape.num_q_heads,
                         next.head, shape.head_dim};
      Tile::template Copy<kThreads>(copies, q, next.query, tiles + i % kStages * Tile::kSize);
      if (thread < Tile::kRows) {
        const int query = next.query + thread;
        const bool is_live = query < tail.rows;
        copies.Copy<4>(
            lses + i % kStages * Tile::kRows + thread,
            tail.lse + (is_live ? static_cast<size_t>(query) * shape.num_q_heads + next.head : 0),
            is_live);
      }
      step(next);
    }
    copies.Commit();  // empty at the end, so that as many are behind each as ever
  };

  const PromptRows k{static_cast<const uint16_t*>(tail.k), tail.n, shape.num_kv_heads,
                     first_head / shape.group_size(), shape.head_dim};
  for (int stage = 0; stage < kStages; ++stage) {
    Tile::template Copy<kThreads>(copies, k, key + stage * Tile::kRows,
                                  tiles + stage * Tile::kSize);
  }
  copies.Commit();
  copies.Wait<0>();
  __syncthreads();
  keys.Load(tiles + warp * Keys::kKeysOfWarp * Tile::kStride);
  __syncthreads();  // the keys were read
  for (int i = 0; i < kStages - 1; ++i) copy_next(i);
  for (int i = 0; i < count; ++i) {
    copies.Wait<kStages - 2>();
    __syncthreads();  // the tile is there, and the one before was read
    copy_next(i + kStages - 1);
    if (keys.first_key < end) {
      keys.Add(tiles + i % kStages * Tile::kSize, lses + i % kStages * Tile::kRows, now.query);
    }
    step(now);
  }
  ZIGGURAT_UNROLL
  for (int group = 0; group < Keys::kGroups; ++group) {
    ZIGGURAT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = RowSum(keys.sums[group][half]);
      const int at = keys.KeyOf(group, half);
      if (keys.c != 0 || at >= end) continue;
      sums[blockIdx.x * stride + at - begin] = sum / static_cast<float>(heads);
    }
  }
}

/// A thread for each number: of `parts` [parts, count] always in the same order, to rows of
/// `width`.
__global__ void __launch_bounds__(kThreads)
    AddParts(const float* of_parts, int parts, int count, int width, float* sums, size_t stride) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= count) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += of_parts[static_cast<size_t>(part) * count + i];
  sums[i / width * stride + i % width] = sum;
}

/// So many blocks are enough for any card to be evenly busy until the end, when long ones begin
/// first. Where tiles of keys are fewer, what each goes through is cut into parts.
constexpr int kBlocks = 1024;
/// Tiles of queries in a part of the first keys, which have the most: loading keys costs as much as
/// loading four.
constexpr int kLeastTiles = 4;
constexpr int kMostKeys = KeyTile<128>::kKeys;  ///< of a block, whatever the size of heads

/// Depends on no card, so that results do not.
int PartsOf(int blocks, int query_tiles) {
  return std::max(1, std::min(kBlocks / blocks, query_tiles / kLeastTiles));
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

// Where there are parts, all results have kBlocks of them at most.
size_t ColumnSumsScratchBytes() { return sizeof(float) * kBlocks * kMostKeys; }

void LaunchTensorColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                            bool query_heads, float* sums, size_t stride, void* scratch,
                            cudaStream_t stream) {
  const int results = query_heads ? shape.num_q_heads : shape.num_kv_heads, width = end - begin;
  WithMaxDim(shape.head_dim, [&](auto max_dim) {
    constexpr int kKeys = KeyTile<max_dim()>::kKeys, kQueries = PromptTile<max_dim()>::kRows;
    const int key_tiles = (width + kKeys - 1) / kKeys;
    const int query_tiles = (tail.rows + kQueries - 1) / kQueries * shape.num_q_heads / results;
    const int parts = PartsOf(results * key_tiles, query_tiles);
    auto* of_parts = parts == 1 ? sums : static_cast<float*>(scratch);
    Launch(TileSums<max_dim()>,
           dim3{static_cast<unsigned>(results * parts), static_cast<unsigned>(key_tiles)},
           dim3{kThreads}, kSharedBytes<max_dim()>, stream, shape, tail, begin, end, query_heads,
           parts, of_parts, parts == 1 ? stride : width);
    if (parts == 1) return;
    const int count = results * width;
    Launch(AddParts, dim3{static_cast<unsigned>((count + kThreads - 1) / kThreads)}, dim3{kThreads},
           0, stream, of_parts, parts, count, width, sums, stride);
  });
}

}  // namespace ziggurat::cuda

// Each item's new token into the slots that its targets say.
#include "attention/cuda/encode.cuh"
#include "attention/cuda/rotary.cuh"
#include "attention/cuda/writes.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

/// The slot with the lowest score among those whose position is at most `newest`, the lowest slot
/// of equal ones; a NaN counts as infinity. Where every token is too recent: the oldest. One warp.
__device__ int LowestScoredSlot(const DeviceCache& cache, const DeviceSegment& s, int head,
                                int newest) {
  float lowest = INFINITY;
  int slot = INT32_MAX, oldest = INT32_MAX, oldest_slot = INT32_MAX;
  constexpr int kAtOnce = 4;  // loads that are under way together
  for (int first = LaneOfThread(); first < s.num_slots; first += kAtOnce * kWarp) {
    int positions[kAtOnce];
    float scores[kAtOnce];
    ZIGGURAT_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = min(first + k * kWarp, s.num_slots - 1);
      positions[k] = EntryOf<int32_t>(cache, s.positions, head, i);
      scores[k] = EntryOf<float>(cache, s.scores, head, i);
    }
    ZIGGURAT_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = first + k * kWarp;
      if (i >= s.num_slots) break;
      const int position = positions[k];
      if (oldest_slot == INT32_MAX || position < oldest) oldest = position, oldest_slot = i;
      if (position > newest) continue;
      const float score = scores[k] != scores[k] ? INFINITY : scores[k];
      if (slot == INT32_MAX || score < lowest) lowest = score, slot = i;
    }
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, lowest, lanes);
    const int other_slot = __shfl_xor_sync(kAllLanes, slot, lanes);
    const int other_oldest = __shfl_xor_sync(kAllLanes, oldest, lanes);
    const int other_oldest_slot = __shfl_xor_sync(kAllLanes, oldest_slot, lanes);
    if (other < lowest || (other == lowest && other_slot < slot)) {
      lowest = other, slot = other_slot;
    }
    if (other_oldest < oldest || (other_oldest == oldest && other_oldest_slot < oldest_slot)) {
      oldest = other_oldest, oldest_slot = other_oldest_slot;
    }
  }
  return slot == INT32_MAX ? oldest_slot : slot;
}

/// The tokens of a packed projection, of which keys and queries are still to be rotated.
struct PackedTokens {
  ElementType element;
  const void* qkv;
  const float* cos;
  const float* sin;
  float* q;

  __device__ float Rotate(const AttentionShape& shape, int item, int head, int c) const {
    const int heads = shape.num_q_heads + 2 * shape.num_kv_heads, dim = shape.head_dim;
    const size_t angles = static_cast<size_t>(item) * (dim / 2);
    return Rotated(element, qkv, (static_cast<size_t>(item) * heads + head) * dim, c, dim,
                   cos + angles, sin + angles);
  }
  __device__ float At(const AttentionShape& shape, Side side, int item, int kv_head, int c) const {
    const int head = shape.num_q_heads + kv_head;
    if (side == Side::kKeys) return Rotate(shape, item, head, c);
    const int heads = shape.num_q_heads + 2 * shape.num_kv_heads;
    const size_t row = static_cast<size_t>(item) * heads + head + shape.num_kv_heads;
    return LoadElement(element, qkv, row * shape.head_dim + c);
  }
  __device__ void WriteQuery(const AttentionShape& shape, int item, int head) const {
    const int heads = shape.num_q_heads + 2 * shape.num_kv_heads, dim = shape.head_dim;
    float* to = q + (static_cast<size_t>(item) * shape.num_q_heads + head) * dim;
    const size_t angles = static_cast<size_t>(item) * (dim / 2);
    RotateHead(element, qkv, (static_cast<size_t>(item) * heads + head) * dim, dim, cos + angles,
               sin + angles,
               [&](int c, float2 values) { *reinterpret_cast<float2*>(to + c) = values; });
  }
};

/// A warp for each item (x) and KV head (y); behind the KV heads, one for each query head.
__global__ void __launch_bounds__(kWarp)
    WriteStep(AttentionShape shape, DeviceCache cache, DeviceItems items, PackedTokens tokens) {
  LetNextBegin();
  AwaitPrevious();
  const int i = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  if (i >= items.size(cache)) return;
  if (kv_head >= shape.num_kv_heads) {
    return tokens.WriteQuery(shape, i, kv_head - shape.num_kv_heads);
  }
  const DeviceItem& item = items.item(cache, i);
  for (int t = 0; t < item.num_targets; ++t) {
    const DeviceTarget& target = cache.target(item, t);
    const DeviceSegment& s = cache.segment(item, target.segment);
    if (!s.covers(kv_head)) continue;
    const int head = kv_head - s.first_kv_head;
    const int slot = target.slot >= 0
                         ? target.slot
                         : LowestScoredSlot(cache, s, head, item.position - item.score_recent);
    __syncwarp();  // the scores were read
    for (Side side : {Side::kKeys, Side::kValues}) {
      EncodeToken(cache, s, side, head, slot, shape.head_dim,
                  [&](int c) { return tokens.At(shape, side, i, kv_head, c); });
    }
    if (!s.scores.exists() || LaneOfThread() != 0) continue;
    EntryOf<float>(cache, s.scores, head, slot) = 0;
    EntryOf<int32_t>(cache, s.positions, head, slot) = item.position;
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchRotateAndWriteStep(const AttentionShape& shape, const DeviceCache& cache,
                              const DeviceItems& items, ElementType element, const void* qkv,
                              const float* cos, const float* sin, float* q, cudaStream_t stream) {
  if (items.capacity == 0) return;
  const dim3 grid{static_cast<unsigned>(items.capacity),
                  static_cast<unsigned>(shape.num_kv_heads + shape.num_q_heads)};
  LaunchEarly(WriteStep, grid, dim3{kWarp}, 0, stream, shape, cache, items,
              PackedTokens{element, qkv, cos, sin, q});
}

}  // namespace ziggurat::cuda

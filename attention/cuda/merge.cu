// MiniCache: directions that two layers share (arXiv:2405.14366).
#include "attention/cuda/encode.cuh"
#include "attention/cuda/statistics.h"
#include "attention/cuda/writes.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

/// What two vectors have to do with one another.
struct Pair {
  double length0;
  double length1;
  double angle;  ///< 0 where one is zero
};

/// Of the vectors x0(channel) and x1(channel); every lane has the result.
template <class Vector0, class Vector1>
__device__ Pair PairOf(Vector0 x0, Vector1 x1, int dim) {
  double dot = 0, squares0 = 0, squares1 = 0;
  for (int c = LaneOfThread(); c < dim; c += kWarp) {
    const double a = static_cast<double>(x0(c)), b = static_cast<double>(x1(c));
    dot += a * b;
    squares0 += a * a;
    squares1 += b * b;
  }
  Pair pair = {sqrt(WarpSum(squares0)), sqrt(WarpSum(squares1)), 0};
  dot = WarpSum(dot);
  if (pair.length0 == 0 || pair.length1 == 0) return pair;
  const double cosine = dot / pair.length0 / pair.length1;
  pair.angle = acos(cosine > 1 ? 1 : cosine < -1 ? -1 : cosine);
  return pair;
}

/// SLERP of the two, of length 1; every lane has the pair.   to [dim]
template <class Vector0, class Vector1>
__device__ Pair WriteDirection(Vector0 x0, Vector1 x1, int dim, double t, float* to) {
  const Pair pair = PairOf(x0, x1, dim);
  double weight0 = 1 - t, weight1 = t;
  if (sin(pair.angle) >= 1e-6) {
    weight0 = sin((1 - t) * pair.angle) / sin(pair.angle);
    weight1 = sin(t * pair.angle) / sin(pair.angle);
  }
  // A zero vector takes the other's direction.
  weight0 = pair.length0 == 0 ? 0 : pair.length1 == 0 ? 1 / pair.length0 : weight0 / pair.length0;
  weight1 = pair.length1 == 0 ? 0 : pair.length0 == 0 ? 1 / pair.length1 : weight1 / pair.length1;
  const auto mixed = [&](int c) {
    return weight0 * static_cast<double>(x0(c)) + weight1 * static_cast<double>(x1(c));
  };
  const int lane = LaneOfThread();
  double squares = 0;
  for (int c = lane; c < dim; c += kWarp) squares += mixed(c) * mixed(c);
  squares = WarpSum(squares);
  const double inverse = squares == 0 ? 0 : 1 / sqrt(squares);
  for (int c = lane; c < dim; c += kWarp) to[c] = static_cast<float>(mixed(c) * inverse);
  return pair;
}

/// The vector at elements `first` of x.
struct Elements {
  ElementType element;
  const void* x;
  size_t first;
  __device__ float operator()(int c) const { return LoadElement(element, x, first + c); }
};

/// The vector of a slot.
struct SlotVector {
  const DeviceCache& cache;
  const DeviceSegment& segment;
  Side side;
  int head;
  int slot;
  int dim;
  __device__ float operator()(int c) const {
    return SlotFactor(cache, segment, side, head, slot) *
           ChannelValue(cache, segment, side, head, slot, c, dim);
  }
};

/// What the pair of a slot has as norms, in the views of the two layers.
__device__ void WriteNorms(const DeviceCache& cache, const DeviceSegment& lower,
                           const DeviceSegment& upper, Side side, int head, int slot,
                           const Pair& pair) {
  if (LaneOfThread() != 0) return;
  EntryOf<float>(cache, NormsOf(lower, side), head, slot) = static_cast<float>(pair.length0);
  EntryOf<float>(cache, NormsOf(upper, side), head, slot) = static_cast<float>(pair.length1);
}

/// A warp for each token (x) and head (y).
__global__ void __launch_bounds__(kWarp)
    MergeAngles(AttentionShape shape, ElementType element, const void* k0, const void* k1, int m,
                float* angles) {
  const size_t token = blockIdx.x, head = blockIdx.y;
  const size_t first = (token * shape.num_kv_heads + head) * shape.head_dim;
  const Pair pair =
      PairOf(Elements{element, k0, first}, Elements{element, k1, first}, shape.head_dim);
  if (LaneOfThread() == 0) angles[head * m + token] = static_cast<float>(pair.angle);
}

/// A warp for each token (x), head (y) and side (z): SLERP of the two, of length 1, and the norms.
///   directions  [sides, heads, count, head_dim]
__global__ void __launch_bounds__(kWarp)
    MergeDirections(AttentionShape shape, KeyValues lower_tokens, KeyValues upper_tokens,
                    DeviceIndices rows, int count, double t, DeviceCache cache, uint32_t lower_word,
                    uint32_t upper_word, int first_slot, float* directions) {
  const DeviceSegment& lower = cache.segment(lower_word);
  const DeviceSegment& upper = cache.segment(upper_word);
  const int i = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int dim = shape.head_dim;
  const Side side = blockIdx.z == 0 ? Side::kKeys : Side::kValues;
  const void* x0 = side == Side::kKeys ? lower_tokens.k : lower_tokens.v;
  const void* x1 = side == Side::kKeys ? upper_tokens.k : upper_tokens.v;
  const size_t row = rows.at(head, i);
  const size_t first = (row * shape.num_kv_heads + lower.first_kv_head + head) * dim;
  float* to = directions +
              ((static_cast<size_t>(blockIdx.z) * lower.num_kv_heads + head) * count + i) * dim;
  const Pair pair = WriteDirection(Elements{lower_tokens.element, x0, first},
                                   Elements{upper_tokens.element, x1, first}, dim, t, to);
  WriteNorms(cache, lower, upper, side, head, first_slot + i, pair);
}

/// A warp for each unit (x), head (y) and side (z).
__global__ void __launch_bounds__(kWarp)
    EncodeDirections(AttentionShape shape, DeviceCache cache, int count, uint32_t word,
                     int first_slot, const float* directions) {
  const DeviceSegment& s = cache.segment(word);
  const int head = static_cast<int>(blockIdx.y), dim = shape.head_dim;
  const int first = static_cast<int>(blockIdx.x) * UnitTokens(s);
  const float* from =
      directions +
      ((static_cast<size_t>(blockIdx.z) * s.num_kv_heads + head) * count + first) * dim;
  EncodeUnit(cache, s, blockIdx.z == 0 ? Side::kKeys : Side::kValues, head, first_slot + first, dim,
             [&](int token, int c) { return from[static_cast<size_t>(token) * dim + c]; });
}

// ---- Tails of many pairs at once ----------------------------------------------------------------

/// What one warp works on: a token or unit (x) of a head (y), of a side of a merge (z).
struct PartOfMerge {
  const TailMergeRecord& merge;
  const int index;  ///< blockIdx.z without the side
  const int i;
  const int head;
  const Side side;

  __device__ PartOfMerge(const TailMergeRecord* merges, int parts)
      : merge(merges[blockIdx.z / 2 / parts]),
        index(static_cast<int>(blockIdx.z) / 2),
        i(static_cast<int>(blockIdx.x)),
        head(static_cast<int>(blockIdx.y)),
        side(blockIdx.z % 2 == 0 ? Side::kKeys : Side::kValues) {}
};

/// A warp for each token (x), head (y) and merge (z).
__global__ void __launch_bounds__(kWarp)
    TailAngles(AttentionShape shape, DeviceCache cache, const TailMergeRecord* merges, int m,
               float* angles) {
  const TailMergeRecord& merge = merges[blockIdx.z];
  const int slot = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int dim = shape.head_dim;
  const auto key = [&](uint32_t word) {
    return SlotVector{cache, cache.segment(word), Side::kKeys, head, slot, dim};
  };
  const Pair pair = PairOf(key(merge.lower_tail), key(merge.upper_tail), dim);
  const size_t row = static_cast<size_t>(blockIdx.z) * shape.num_kv_heads + head;
  if (LaneOfThread() == 0) angles[row * m + slot] = static_cast<float>(pair.angle);
}

/// A warp for each merged token (x), head (y), and side of a merge (z).
///   rest  [merges, heads, count] the slots in the tails
__global__ void __launch_bounds__(kWarp)
    TailDirections(AttentionShape shape, DeviceCache cache, const TailMergeRecord* merges,
                   const int32_t* rest, int count, float* directions) {
  const PartOfMerge part(merges, 1);
  const int dim = shape.head_dim;
  const size_t row = static_cast<size_t>(part.index) * shape.num_kv_heads + part.head;
  const int slot = rest[row * count + part.i];
  const auto vector = [&](uint32_t word) {
    return SlotVector{cache, cache.segment(word), part.side, part.head, slot, dim};
  };
  float* to =
      directions +
      ((static_cast<size_t>(blockIdx.z) * shape.num_kv_heads + part.head) * count + part.i) * dim;
  const Pair pair = WriteDirection(vector(part.merge.lower_tail), vector(part.merge.upper_tail),
                                   dim, part.merge.t, to);
  WriteNorms(cache, cache.segment(part.merge.lower_merged), cache.segment(part.merge.upper_merged),
             part.side, part.head, part.merge.first_merged_slot + part.i, pair);
}

/// A warp for each unit of merged tokens (x), head (y), and side of a merge (z).
__global__ void __launch_bounds__(kWarp)
    EncodeTailDirections(AttentionShape shape, DeviceCache cache, const TailMergeRecord* merges,
                         int count, const float* directions) {
  const PartOfMerge part(merges, 1);
  const DeviceSegment& s = cache.segment(part.merge.lower_merged);
  const int dim = shape.head_dim, first = part.i * UnitTokens(s);
  const float* from =
      directions +
      ((static_cast<size_t>(blockIdx.z) * shape.num_kv_heads + part.head) * count + first) * dim;
  EncodeUnit(cache, s, part.side, part.head, part.merge.first_merged_slot + first, dim,
             [&](int token, int c) { return from[static_cast<size_t>(token) * dim + c]; });
}

/// A warp for each unit of retained tokens (x), head (y), and side of a layer of a merge (z).
///   kept  [merges, heads, count] the slots in the tails
__global__ void __launch_bounds__(kWarp)
    WriteRetained(AttentionShape shape, DeviceCache cache, const TailMergeRecord* merges,
                  const int32_t* kept, int count) {
  const PartOfMerge part(merges, 2);
  const bool is_lower = part.index % 2 == 0;
  const TailMergeRecord& merge = part.merge;
  const DeviceSegment& tail = cache.segment(is_lower ? merge.lower_tail : merge.upper_tail);
  const DeviceSegment& s = cache.segment(is_lower ? merge.lower_retained : merge.upper_retained);
  const int dim = shape.head_dim, first = part.i * UnitTokens(s);
  const size_t row = static_cast<size_t>(part.index / 2) * shape.num_kv_heads + part.head;
  EncodeUnit(cache, s, part.side, part.head, merge.first_retained_slot + first, dim,
             [&](int token, int c) {
               const int slot = kept[row * count + first + token];
               return SlotVector{cache, tail, part.side, part.head, slot, dim}(c);
             });
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchMergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                       const void* k1, int m, float* angles, cudaStream_t stream) {
  if (m == 0) return;
  const dim3 grid{static_cast<unsigned>(m), static_cast<unsigned>(shape.num_kv_heads)};
  Launch(MergeAngles, grid, dim3{kWarp}, 0, stream, shape, element, k0, k1, m, angles);
}

size_t MergeScratchBytes(int heads, int count, int head_dim) {
  return size_t{2} * heads * count * head_dim * sizeof(float);
}

void LaunchWriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                       const KeyValues& upper_tokens, const DeviceIndices& rows, int count,
                       double t, const DeviceCache& cache, const MergedSegment& segment,
                       int first_slot, void* scratch, cudaStream_t stream) {
  if (count == 0) return;
  const TargetSegment& lower = segment.lower;
  const auto heads = static_cast<unsigned>(lower.heads);
  auto* directions = static_cast<float*>(scratch);
  Launch(MergeDirections, dim3{static_cast<unsigned>(count), heads, 2}, dim3{kWarp}, 0, stream,
         shape, lower_tokens, upper_tokens, rows, count, t, cache, lower.word, segment.upper,
         first_slot, directions);
  Launch(EncodeDirections, dim3{static_cast<unsigned>(count / lower.unit), heads, 2}, dim3{kWarp},
         0, stream, shape, cache, count, lower.word, first_slot, directions);
}

namespace {

/// Of `merges` merges: angles and lists of slots, and the directions.
struct TailScratch {
  float* angles;
  int32_t* kept;
  int32_t* rest;
  float* directions;

  static size_t Words(const TailMergeExtent& each, int heads, int dim) {
    return static_cast<size_t>(heads) *
           (2 * each.count + size_t{2} * (each.count - each.retained) * dim);
  }
  TailScratch(void* memory, const TailMergeExtent& each, int merges, int heads) {
    const size_t rows = static_cast<size_t>(merges) * heads;
    angles = static_cast<float*>(memory);
    kept = reinterpret_cast<int32_t*>(angles + rows * each.count);
    rest = kept + rows * each.retained;
    directions = reinterpret_cast<float*>(rest + rows * (each.count - each.retained));
  }
};

}  // namespace

size_t TailMergeScratchBytes(const TailMergeExtent& each, int heads, int head_dim) {
  return TailScratch::Words(each, heads, head_dim) * sizeof(float);
}

void LaunchMergeTails(const AttentionShape& shape, const DeviceCache& cache,
                      const TailMergeRecord* merges, int num_merges, const TailMergeExtent& each,
                      void* scratch, cudaStream_t stream) {
  const int merged = each.count - each.retained, rows = num_merges * shape.num_kv_heads;
  if (num_merges == 0 || each.count == 0) return;
  const TailScratch memory(scratch, each, num_merges, shape.num_kv_heads);
  const auto heads = static_cast<unsigned>(shape.num_kv_heads);
  const auto z = static_cast<unsigned>(num_merges);
  Launch(TailAngles, dim3{static_cast<unsigned>(each.count), heads, z}, dim3{kWarp}, 0, stream,
         shape, cache, merges, each.count, memory.angles);
  LaunchSelectBest(memory.angles, each.count, rows, each.count, each.retained, memory.kept, stream);
  LaunchComplement(memory.kept, rows, each.retained, each.count, memory.rest, stream);
  if (merged > 0) {
    Launch(TailDirections, dim3{static_cast<unsigned>(merged), heads, 2 * z}, dim3{kWarp}, 0,
           stream, shape, cache, merges, memory.rest, merged, memory.directions);
    Launch(EncodeTailDirections,
           dim3{static_cast<unsigned>(merged / each.merged_unit), heads, 2 * z}, dim3{kWarp}, 0,
           stream, shape, cache, merges, merged, memory.directions);
  }
  if (each.retained > 0) {
    Launch(WriteRetained,
           dim3{static_cast<unsigned>(each.retained / each.retained_unit), heads, 4 * z},
           dim3{kWarp}, 0, stream, shape, cache, merges, memory.kept, each.retained);
  }
}

}  // namespace ziggurat::cuda

// MiniCache: directions that two layers share (arXiv:2405.14366).
#include "attention/cuda/encode.cuh"
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

/// Of the vectors at elements `first` of x0 and x1; every lane has the result.
__device__ Pair PairOf(ElementType element, const void* x0, const void* x1, size_t first, int dim) {
  double dot = 0, squares0 = 0, squares1 = 0;
  for (int c = LaneOfThread(); c < dim; c += kWarp) {
    const double a = static_cast<double>(LoadElement(element, x0, first + c));
    const double b = static_cast<double>(LoadElement(element, x1, first + c));
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

/// A warp for each token (x) and head (y).
__global__ void __launch_bounds__(kWarp)
    MergeAngles(DeviceShape shape, ElementType element, const void* k0, const void* k1, int m,
                float* angles) {
  const size_t token = blockIdx.x, head = blockIdx.y;
  const size_t first = (token * shape.num_kv_heads + head) * shape.head_dim;
  const Pair pair = PairOf(element, k0, k1, first, shape.head_dim);
  if (LaneOfThread() == 0) angles[head * m + token] = static_cast<float>(pair.angle);
}

struct TwoLayers {
  const void* k0;
  const void* v0;
  const void* k1;
  const void* v1;
};

/// A warp for each token (x), head (y) and side (z): SLERP of the two, of length 1, and the norms.
///   directions  [sides, heads, count, head_dim]
__global__ void __launch_bounds__(kWarp)
    MergeDirections(DeviceShape shape, ElementType element, TwoLayers layers, DeviceIndices rows,
                    int count, double t, DeviceCache cache, uint32_t lower_word,
                    uint32_t upper_word, int first_slot, float* directions) {
  const DeviceSegment& lower = cache.segment(lower_word);
  const DeviceSegment& upper = cache.segment(upper_word);
  const int i = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int dim = shape.head_dim, lane = LaneOfThread();
  const Side side = blockIdx.z == 0 ? Side::kKeys : Side::kValues;
  const void* x0 = side == Side::kKeys ? layers.k0 : layers.v0;
  const void* x1 = side == Side::kKeys ? layers.k1 : layers.v1;
  const size_t row = rows.at(head, i);
  const size_t first = (row * shape.num_kv_heads + lower.first_kv_head + head) * dim;
  const Pair pair = PairOf(element, x0, x1, first, dim);
  double weight0 = 1 - t, weight1 = t;
  if (sin(pair.angle) >= 1e-6) {
    weight0 = sin((1 - t) * pair.angle) / sin(pair.angle);
    weight1 = sin(t * pair.angle) / sin(pair.angle);
  }
  // A zero vector takes the other's direction.
  weight0 = pair.length0 == 0 ? 0 : pair.length1 == 0 ? 1 / pair.length0 : weight0 / pair.length0;
  weight1 = pair.length1 == 0 ? 0 : pair.length0 == 0 ? 1 / pair.length1 : weight1 / pair.length1;
  const auto mixed = [&](int c) {
    return weight0 * static_cast<double>(LoadElement(element, x0, first + c)) +
           weight1 * static_cast<double>(LoadElement(element, x1, first + c));
  };
  double squares = 0;
  for (int c = lane; c < dim; c += kWarp) squares += mixed(c) * mixed(c);
  squares = WarpSum(squares);
  const double inverse = squares == 0 ? 0 : 1 / sqrt(squares);
  float* to = directions +
              ((static_cast<size_t>(blockIdx.z) * lower.num_kv_heads + head) * count + i) * dim;
  for (int c = lane; c < dim; c += kWarp) to[c] = static_cast<float>(mixed(c) * inverse);
  if (lane != 0) return;
  EntryOf<float>(cache, NormsOf(lower, side), head, first_slot + i) =
      static_cast<float>(pair.length0);
  EntryOf<float>(cache, NormsOf(upper, side), head, first_slot + i) =
      static_cast<float>(pair.length1);
}

/// A warp for each unit (x), head (y) and side (z).
__global__ void __launch_bounds__(kWarp)
    EncodeDirections(DeviceShape shape, DeviceCache cache, int count, uint32_t word, int first_slot,
                     const float* directions) {
  const DeviceSegment& s = cache.segment(word);
  const int head = static_cast<int>(blockIdx.y), dim = shape.head_dim;
  const int first = static_cast<int>(blockIdx.x) * UnitTokens(s);
  const float* from =
      directions +
      ((static_cast<size_t>(blockIdx.z) * s.num_kv_heads + head) * count + first) * dim;
  EncodeUnit(cache, s, blockIdx.z == 0 ? Side::kKeys : Side::kValues, head, first_slot + first, dim,
             [&](int token, int c) { return from[static_cast<size_t>(token) * dim + c]; });
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchMergeAngles(const DeviceShape& shape, ElementType element, const void* k0,
                       const void* k1, int m, float* angles, cudaStream_t stream) {
  if (m == 0) return;
  const dim3 grid{static_cast<unsigned>(m), static_cast<unsigned>(shape.num_kv_heads)};
  Launch(MergeAngles, grid, dim3{kWarp}, 0, stream, shape, element, k0, k1, m, angles);
}

size_t MergeScratchBytes(int heads, int count, int head_dim) {
  return size_t{2} * heads * count * head_dim * sizeof(float);
}

void LaunchWriteMerged(const DeviceShape& shape, ElementType element, const void* k0,
                       const void* v0, const void* k1, const void* v1, const DeviceIndices& rows,
                       int count, double t, const DeviceCache& cache, const TargetSegment& lower,
                       uint32_t upper, int first_slot, void* scratch, cudaStream_t stream) {
  if (count == 0) return;
  const auto heads = static_cast<unsigned>(lower.heads);
  auto* directions = static_cast<float*>(scratch);
  Launch(MergeDirections, dim3{static_cast<unsigned>(count), heads, 2}, dim3{kWarp}, 0, stream,
         shape, element, TwoLayers{k0, v0, k1, v1}, rows, count, t, cache, lower.word, upper,
         first_slot, directions);
  Launch(EncodeDirections, dim3{static_cast<unsigned>(count / lower.unit), heads, 2}, dim3{kWarp},
         0, stream, shape, cache, count, lower.word, first_slot, directions);
}

}  // namespace ziggurat::cuda

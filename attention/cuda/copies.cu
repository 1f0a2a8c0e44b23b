// Tokens from segment to segment. They pass through a staging memory, so that slots may be moved
// within one segment; but straight to where nothing is read, as when tokens become codes. A copy is
// an edit, done once for many steps.
#include "attention/cuda/encode.cuh"
#include "attention/cuda/writes.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kSides = 2;
constexpr int kAttributes = 6;  ///< four norms, score, position

/// Of each side, head and token: its cells or its numbers, and what else is copied.
struct Staging {
  uint32_t* data;        ///< [sides, heads, count, head_dim] cells where bit for bit, else f32
  uint32_t* groups;      ///< [sides, heads, count, head_dim] scale and zero of each channel
  float* scales;         ///< [sides, heads, count] per token
  uint32_t* attributes;  ///< [heads, count, kAttributes]
  int32_t* as_bits;      ///< [sides, heads, count] of the first token of a unit

  ZIGGURAT_HOST_DEVICE static size_t Words(size_t heads, size_t count, size_t dim) {
    return heads * count * (kSides * (2 * dim + 2) + kAttributes);
  }
  ZIGGURAT_HOST_DEVICE Staging(void* memory, size_t heads, size_t count, size_t dim) {
    const size_t tokens = kSides * heads * count;
    data = static_cast<uint32_t*>(memory);
    groups = data + tokens * dim;
    scales = reinterpret_cast<float*>(groups + tokens * dim);
    attributes = groups + tokens * dim + tokens;
    as_bits = reinterpret_cast<int32_t*>(attributes + heads * count * kAttributes);
  }
};

/// Norm `index` of the four of a slot: K and V of the lower layer, then of the upper.
__device__ float& NormOf(const DeviceCache& cache, const DeviceSegment& s, int index, int head,
                         int slot) {
  DevicePlane plane = s.key_norms;
  const uint32_t area_bytes = plane.slots_per_block * 4;
  plane.offset_bytes =
      plane.offset_bytes / (4 * area_bytes) * (4 * area_bytes) + index * area_bytes;
  return EntryOf<float>(cache, plane, head, slot);
}

/// Bit for bit where the encodings are equal and, where scales are shared, the slots are a group of
/// `from` in order.
__device__ bool GoesBitForBit(const DeviceSegment& from, const DeviceIndices& slots, int head,
                              int first, const DeviceSegment& to) {
  if (from.encoding != to.encoding) return false;
  if (from.key_norms.exists() != to.key_norms.exists()) return false;
  if (!IsGrouped(to.code())) return true;
  const int begin = slots.at(head, first);
  if (from.group != to.group || begin % to.group != 0) return false;
  for (int t = 1; t < to.group; ++t) {
    if (slots.at(head, first + t) != begin + t) return false;
  }
  return true;
}

/// What one warp moves: a unit (x) of a head of `to` (y), of a side of a copy (z).
struct UnitOfCopy {
  const CopyRecord& copy;
  const DeviceSegment& from;
  const DeviceSegment& to;
  const int unit;   ///< tokens
  const int head;   ///< of `to`
  const int first;  ///< token of the copy
  const Side side;

  __device__ UnitOfCopy(const DeviceCache& cache, const CopyRecord* copies)
      : copy(copies[blockIdx.z / kSides]),
        from(cache.segment(copy.from)),
        to(cache.segment(copy.to)),
        unit(UnitTokens(to)),
        head(static_cast<int>(blockIdx.y)),
        first(static_cast<int>(blockIdx.x) * unit),
        side(blockIdx.z % kSides == 0 ? Side::kKeys : Side::kValues) {}

  /// Others have fewer heads or tokens, or the keys of another layer.
  __device__ bool exists() const {
    return head < to.num_kv_heads && first < copy.count && Owns(to, side);
  }
  __device__ Staging StagingIn(unsigned char* memory, int dim) const {
    return {memory + copy.scratch, static_cast<size_t>(to.num_kv_heads),
            static_cast<size_t>(copy.count), static_cast<size_t>(dim)};
  }
  /// Of the first token, among those of both sides.
  __device__ size_t StagedAt() const {
    return (static_cast<size_t>(blockIdx.z % kSides) * to.num_kv_heads + head) * copy.count + first;
  }
};

__global__ void __launch_bounds__(kWarp)
    LoadUnits(AttentionShape shape, DeviceCache cache, const CopyRecord* copies,
              unsigned char* memory) {
  const UnitOfCopy u(cache, copies);
  if (!u.exists()) return;
  const DeviceSegment &from = u.from, &to = u.to;
  const DeviceIndices& slots = u.copy.slots;
  const int dim = shape.head_dim, lane = LaneOfThread(), head = u.head, first = u.first;
  const int from_head = to.first_kv_head + head - from.first_kv_head, unit = u.unit;
  const Side side = u.side;
  const Staging staging = u.StagingIn(memory, dim);
  const bool as_bits = GoesBitForBit(from, slots, head, first, to);
  for (int t = 0; t < unit; ++t) {
    const int slot = slots.at(head, first + t);
    const size_t token = u.StagedAt() + t;
    uint32_t* data = staging.data + token * dim;
    if (lane == 0 && t == 0) staging.as_bits[token] = as_bits;
    if (!as_bits) {
      const float factor = to.key_norms.exists()
                               ? (IsPerToken(from.code())
                                      ? EntryOf<float>(cache, ScalesOf(from, side), from_head, slot)
                                      : 1)
                               : SlotFactor(cache, from, side, from_head, slot);
      for (int c = lane; c < dim; c += kWarp) {
        data[c] =
            __float_as_uint(factor * ChannelValue(cache, from, side, from_head, slot, c, dim));
      }
      continue;
    }
    for (int p = lane; p < CellsOf(from.code(), dim); p += kWarp) {
      data[p] = CellOf(cache, from, side, from_head, slot, p, dim);
    }
    if (IsPerToken(from.code()) && lane == 0) {
      staging.scales[token] = EntryOf<float>(cache, ScalesOf(from, side), from_head, slot);
    }
    for (int c = lane; IsGrouped(from.code()) && c < dim; c += kWarp) {
      const uint16_t* entry = GroupEntryOf(cache, from, side, from_head, slot, c, dim);
      staging.groups[token * dim + c] = entry[0] | static_cast<uint32_t>(entry[dim]) << 16;
    }
  }
}

/// From plain numbers, without norms, to codes. The unit comes to shared memory first, a word more
/// a token than it has cells, so that neighbouring tokens lie in other banks.
__global__ void __launch_bounds__(kWarp)
    EncodeUnits(AttentionShape shape, DeviceCache cache, const CopyRecord* copies) {
  ZIGGURAT_SHARED_MEMORY(memory);
  auto* tile = reinterpret_cast<uint32_t*>(memory);
  const UnitOfCopy u(cache, copies);
  if (!u.exists()) return;
  const int dim = shape.head_dim, first_slot = u.copy.first_slot + u.first;
  const Encoding plain = u.from.code();
  const int from_head = u.to.first_kv_head + u.head - u.from.first_kv_head;
  const int cells = CellsOf(plain, dim), stride = cells + 1;
  ZIGGURAT_UNROLL_FOUR_TIMES
  for (int i = LaneOfThread(); i < u.unit * cells; i += kWarp) {
    const auto [token, cell] = PlaceInUnit(u.side, i, u.unit, cells);
    const int slot = u.copy.slots.at(u.head, u.first + token);
    tile[token * stride + cell] = CellOf(cache, u.from, u.side, from_head, slot, cell, dim);
  }
  __syncwarp();
  const int channels = dim / cells;
  EncodeUnit(cache, u.to, u.side, u.head, first_slot, dim, [&](int token, int c) {
    return CodeValue(plain, tile[token * stride + c / channels], c % channels);
  });
}

/// A thread for each token (x) of each head (y) of a copy (z): norms, scores and positions, in or
/// out.
__global__ void __launch_bounds__(kWarp)
    MoveAttributes(AttentionShape shape, DeviceCache cache, const CopyRecord* copies, bool out,
                   unsigned char* memory) {
  const CopyRecord& copy = copies[blockIdx.z];
  const DeviceSegment& from = cache.segment(copy.from);
  const DeviceSegment& to = cache.segment(copy.to);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int head = static_cast<int>(blockIdx.y), count = copy.count;
  if (i >= count || head >= to.num_kv_heads) return;
  const Staging staging(memory + copy.scratch, to.num_kv_heads, count, shape.head_dim);
  uint32_t* own = staging.attributes + (static_cast<size_t>(head) * count + i) * kAttributes;
  const DeviceSegment& s = out ? from : to;
  const int slot = out ? copy.slots.at(head, i) : copy.first_slot + i;
  const int head_of = out ? to.first_kv_head + head - from.first_kv_head : head;
  const auto move = [&](uint32_t& stored, uint32_t& staged) {
    (out ? staged : stored) = out ? stored : staged;
  };
  for (int n = 0; n < 4 && from.key_norms.exists() && to.key_norms.exists(); ++n) {
    move(reinterpret_cast<uint32_t&>(NormOf(cache, s, n, head_of, slot)), own[n]);
  }
  if (!from.scores.exists() || !to.scores.exists()) return;
  move(EntryOf<uint32_t>(cache, s.scores, head_of, slot), own[4]);
  move(EntryOf<uint32_t>(cache, s.positions, head_of, slot), own[5]);
}

__global__ void __launch_bounds__(kWarp)
    StoreUnits(AttentionShape shape, DeviceCache cache, const CopyRecord* copies,
               unsigned char* memory) {
  const UnitOfCopy u(cache, copies);
  if (!u.exists()) return;
  const DeviceSegment& to = u.to;
  const int dim = shape.head_dim, lane = LaneOfThread(), head = u.head;
  const int first_slot = u.copy.first_slot + u.first;
  const Side side = u.side;
  const Staging staging = u.StagingIn(memory, dim);
  const size_t of_unit = u.StagedAt();
  if (staging.as_bits[of_unit] == 0) {
    return EncodeUnit(cache, to, side, head, first_slot, dim, [&](int token, int c) {
      return __uint_as_float(staging.data[(of_unit + token) * dim + c]);
    });
  }
  for (int t = 0; t < u.unit; ++t) {
    const size_t token = of_unit + t;
    const int slot = first_slot + t;
    for (int p = lane; p < CellsOf(to.code(), dim); p += kWarp) {
      CellOf(cache, to, side, head, slot, p, dim) = staging.data[token * dim + p];
    }
    if (IsPerToken(to.code()) && lane == 0) {
      EntryOf<float>(cache, ScalesOf(to, side), head, slot) = staging.scales[token];
    }
    // A scale is written once: a key's by the first token, a value's by the first channel.
    const int step = side == Side::kKeys ? 1 : to.group;
    for (int c = lane * step; IsGrouped(to.code()) && c < dim; c += kWarp * step) {
      if (side == Side::kKeys && t > 0) break;
      uint16_t* entry = GroupEntryOf(cache, to, side, head, slot, c, dim);
      entry[0] = static_cast<uint16_t>(staging.groups[token * dim + c]);
      entry[dim] = static_cast<uint16_t>(staging.groups[token * dim + c] >> 16);
    }
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

size_t CopyUnitBytes(Encoding from, int unit, int head_dim) {
  return size_t{4} * unit * (CellsOf(from, head_dim) + 1);
}

size_t CopyScratchBytes(int heads, int count, int head_dim) {
  return Staging::Words(heads, count, head_dim) * sizeof(uint32_t);
}

void LaunchCopyTokens(const AttentionShape& shape, const DeviceCache& cache,
                      const CopyRecord* copies, int num_copies, const CopyExtent& most,
                      void* scratch, cudaStream_t stream) {
  if (num_copies == 0 || most.count == 0) return;
  const auto heads = static_cast<unsigned>(most.heads), z = static_cast<unsigned>(num_copies);
  const dim3 units{static_cast<unsigned>(most.units), heads, kSides * z};
  if (!most.is_staged) {
    return Launch(EncodeUnits, units, dim3{kWarp}, most.unit_bytes, stream, shape, cache, copies);
  }
  const dim3 tokens{static_cast<unsigned>(most.count + kWarp - 1) / kWarp, heads, z};
  auto* memory = static_cast<unsigned char*>(scratch);
  const auto move_attributes = [&](bool out) {
    if (!most.has_attributes) return;
    Launch(MoveAttributes, tokens, dim3{kWarp}, 0, stream, shape, cache, copies, out, memory);
  };
  Launch(LoadUnits, units, dim3{kWarp}, 0, stream, shape, cache, copies, memory);
  move_attributes(true);
  Launch(StoreUnits, units, dim3{kWarp}, 0, stream, shape, cache, copies, memory);
  move_attributes(false);
}

}  // namespace ziggurat::cuda

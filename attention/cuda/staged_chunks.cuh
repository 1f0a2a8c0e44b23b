// Chunks of codes on their way through shared memory: while a warp computes one, the next one (of
// grouped codes: the next two) is under way, and takes no registers.
//
// Everything is copied in pieces of 16 bytes. Eight lanes copy whole runs of 128 bytes: the second
// cache is asked for a run at once. A stage holds one chunk of a head:
//   keys              rows of cells, as in the block, each of eight pieces of four slots
//   values            [32 slots, kRowBytes]
//   scales of keys    per token [32] f32; in groups scales and then zeros of the unit, [kDim] bf16
//   scales of values  likewise; in groups those of the chunk's slots
// Shared memory serves eight lanes at a time if their pieces lie in different banks, at different
// places modulo 8. Eight that copy have eight neighbouring pieces. Eight that read have theirs in
// four rows of keys, or in rows of values that are eight slots apart, at the same places of each.
// So the pieces of a row change places, in each of those rows otherwise: by an exclusive or, after
// which eight neighbours are still eight neighbours.
#pragma once

#include "attention/cuda/async_copy.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/packed_codes.cuh"

namespace ziggurat::cuda {

template <Encoding kEncoding, int kDim>
class StagedChunks {
  static_assert(HasStages(kEncoding, kDim));
  static constexpr int kBits = EncodingBits(kEncoding);
  static constexpr int kChannels = 32 / kBits;
  static constexpr int kRowBytes = kDim * kBits / 8;
  static constexpr int kPieces = kRowBytes / 16;  ///< of a slot's values
  static constexpr int kPieceBytes = ValuePieceBytes(kEncoding, kDim);
  static constexpr int kLoads = kDim / kChannels / 4;
  static constexpr int kParts = kDim / 32;  ///< of 32 channels

  // The parts of a stage, in this order; the scales of values come last.
  static constexpr uint32_t kKeyBytes = kLoads * 16 * kWarp;
  static constexpr uint32_t kValueBytes = kChunkSlots * kRowBytes;
  /// Of a side: of codes in groups at most, since 32 is the smallest group here.
  static constexpr uint32_t kScaleBytes = IsGrouped(kEncoding) ? 4 * kDim : 4 * kChunkSlots;
  static constexpr uint32_t kStageBytes = kKeyBytes + kValueBytes + 2 * kScaleBytes;
  static constexpr uint32_t kStages = IsGrouped(kEncoding) ? 3 : 2;
  static constexpr uint32_t kLastStage = (kStages - 1) * kStageBytes;

 public:
  static constexpr int kBytes = kStages * kStageBytes;  ///< for each warp
  /// Whether values are read by ValueMatrices, else by Values.
  static constexpr bool kTransposes = kEncoding == Encoding::kInt4;

  /// `shared`: kBytes for this warp, aligned to 16.
  __device__ explicit StagedChunks(unsigned char* shared) : shared_(shared) {
    const int lane = LaneOfThread();
    key_to_ = 16 * PieceOfKeys(lane / 8, lane % 8);
    value_to_ = PlaceOfPiece(lane);
    Keep(key_to_);
    Keep(value_to_);
  }

  /// From slot `begin` on, a multiple of 32. The chunks of the run before are all left.
  __device__ void Begin(const DeviceCache& cache, const DeviceSegment& s, int head, int begin,
                        int chunks) {
    FindCodes(cache, s, head);
    FindScales(cache, s, head);
    next_ = begin;
    end_ = begin + chunks * kChunkSlots;
    stage_ = 0;
    FindBlocks();
    for (uint32_t i = 0; i < kStages - 1; ++i) CopyNext(cache, i * kStageBytes);
  }

  /// The current chunk is there; another one sets out.
  __device__ void Await(const DeviceCache& cache) {
    copies_.Wait<kStages - 2>();
    __syncwarp();  // pieces are other lanes', and these have left the stage that is filled next
    CopyNext(cache, stage_ == 0 ? kLastStage : stage_ - kStageBytes);
  }
  __device__ void Leave() { stage_ = stage_ == kLastStage ? 0 : stage_ + kStageBytes; }

  /// Slots of the current chunk from `live` on hold anything: what values are multiplied by there
  /// becomes 0.
  __device__ void Silence(int live) {
    const int lane = LaneOfThread();
    if (lane >= live) {
      unsigned char* scales = shared_ + stage_ + kKeyBytes + kValueBytes + kScaleBytes;
      if constexpr (IsGrouped(kEncoding)) {
        const int groups = kDim >> group_shift_;
        for (int i = 0; i < groups; ++i) {
          auto* entry = reinterpret_cast<uint16_t*>(scales) + lane * groups + i;
          entry[0] = entry[kDim] = 0;
        }
      } else {
        reinterpret_cast<float*>(scales)[lane] = 0;
      }
    }
    __syncwarp();
  }

  /// Memory of the stages, when the chunks of a run are all left.
  __device__ unsigned char* memory() const { return shared_; }

  // ---- The current chunk ------------------------------------------------------------------------

  /// Cells of slots 4 r .. 4 r + 3 in row 4 load + c.
  __device__ uint4 Keys(int load) const {
    const int r = LaneOfThread() / 4, c = LaneOfThread() % 4;
    return reinterpret_cast<const uint4*>(stage())[kWarp * load + PieceOfKeys(c, r)];
  }
  /// This lane's piece of the row of slot 8 c + i.
  __device__ void Values(int i, uint32_t (&cells)[kPieceBytes / 4]) const {
    const int r = LaneOfThread() / 4, c = LaneOfThread() % 4;
    const int at = (8 * c + i) * kRowBytes + r * kPieceBytes;
    const unsigned char* from = stage() + kKeyBytes + 16 * ((at / 16) ^ 2 * c) + at % 16;
    if constexpr (kPieceBytes == 16) {
      const auto x = *reinterpret_cast<const uint4*>(from);
      cells[0] = x.x, cells[1] = x.y, cells[2] = x.z, cells[3] = x.w;
    } else if constexpr (kPieceBytes == 8) {
      const auto x = *reinterpret_cast<const uint2*>(from);
      cells[0] = x.x, cells[1] = x.y;
    } else {
      cells[0] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
  /// What codes of slots 4 r .. 4 r + 3 are multiplied by.
  __device__ void Factors(float (&of_keys)[4], float (&of_values)[4]) const {
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) of_keys[i] = of_values[i] = 1;
    if constexpr (IsPerToken(kEncoding)) {
      const auto* scales = reinterpret_cast<const float4*>(scales_of_stage()) + LaneOfThread() / 4;
      const float4 k = scales[0], v = scales[kScaleBytes / 16];
      of_keys[0] = k.x, of_keys[1] = k.y, of_keys[2] = k.z, of_keys[3] = k.w;
      of_values[0] = v.x, of_values[1] = v.y, of_values[2] = v.z, of_values[3] = v.w;
    }
  }
  /// Scales and zeros of the channels of this lane's cells in Keys(load).
  __device__ void KeyScales(int load, uint32_t (&scales)[kChannels / 2],
                            uint32_t (&zeros)[kChannels / 2]) const {
    const auto* of_cell = reinterpret_cast<const uint4*>(
        scales_of_stage() + 2 * kChannels * (4 * load + LaneOfThread() % 4));
    ZIGGURAT_UNROLL
    for (int i = 0; i < kChannels / 8; ++i) {
      const uint4 s = of_cell[i], z = of_cell[i + kDim / 8];
      scales[4 * i] = s.x, scales[4 * i + 1] = s.y, scales[4 * i + 2] = s.z;
      scales[4 * i + 3] = s.w;
      zeros[4 * i] = z.x, zeros[4 * i + 1] = z.y, zeros[4 * i + 2] = z.z, zeros[4 * i + 3] = z.w;
    }
  }
  /// matrices[i]: of slots 8 c + i and 8 c + 4 + i (in its halves), four channels from
  /// 32 part + 4 r on.
  __device__ void ValueMatrices(int part, uint32_t (&matrices)[4]) const {
    const int lane = LaneOfThread();  // row lane % 8 of matrix lane / 8
    const int place = PlaceOfPart(lane / 8, lane % 8, part);
    LoadMatricesTransposed(reinterpret_cast<const uint16_t*>(stage() + kKeyBytes + place),
                           matrices);
  }
  /// Scales and zeros of `channel`, of slots 8 c + i and 8 c + 4 + i.
  __device__ void ValueScalesOfChannel(int channel, uint32_t (&scales)[4],
                                       uint32_t (&zeros)[4]) const {
    const uint16_t* entry = ScalesOfLane() + (channel >> group_shift_);
    PairsOfTokens(entry, scales);
    PairsOfTokens(entry + kDim, zeros);
  }
  /// Zeros of channels 32 r, of slots 8 c + i and 8 c + 4 + i; where r is no part, of any.
  __device__ void ValueZeros(uint32_t (&zeros)[4]) const {
    const int channel = 32 * (LaneOfThread() / 4 % kParts);
    PairsOfTokens(ScalesOfLane() + kDim + (channel >> group_shift_), zeros);
  }
  /// words[i]: scales of slot 8 c + i, of channels 64 pair and 64 pair + 32.
  __device__ void ValueScales(int pair, uint32_t (&words)[8]) const {
    const uint16_t* of_slot = ScalesOfLane();
    if (group_shift_ == 5) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 8; ++i) {
        words[i] = reinterpret_cast<const uint32_t*>(of_slot)[i * (kParts / 2) + pair];
      }
      return;
    }
    const int first = (64 * pair) >> group_shift_, second = (64 * pair + 32) >> group_shift_;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 8; ++i, of_slot += kDim >> group_shift_) {
      words[i] = of_slot[first] | static_cast<uint32_t>(of_slot[second]) << 16;
    }
  }

 private:
  /// Keys and values of one kind of data.
  struct Planes {
    const uint32_t* blocks = nullptr;
    const unsigned char* first = nullptr;  ///< of block 0, what this lane copies first of the keys
    uint32_t to_values = 0;                ///< bytes from there to what it copies of the values
    int shift = 0;                         ///< 2^shift slots in a block

    __device__ Planes() {}
    __device__ Planes(const DeviceCache& cache, const DevicePlane& keys, const DevicePlane& values,
                      int head) {
      blocks = cache.table + keys.blocks;
      first = cache.pool + static_cast<size_t>(head) * keys.head_stride_bytes + keys.offset_bytes;
      to_values = values.offset_bytes - keys.offset_bytes;
      shift = __ffs(keys.slots_per_block) - 1;
      Keep(shift);
    }
    __device__ uint32_t BlockOf(uint32_t slot) const { return blocks[slot >> shift]; }
    __device__ uint32_t InBlock(uint32_t slot) const { return slot & ((1u << shift) - 1); }
  };

  __device__ const unsigned char* stage() const { return shared_ + stage_; }
  __device__ const unsigned char* scales_of_stage() const {
    return stage() + kKeyBytes + kValueBytes;
  }
  /// Of the values, those of slot 8 c and what follows.
  __device__ const uint16_t* ScalesOfLane() const {
    return reinterpret_cast<const uint16_t*>(scales_of_stage() + kScaleBytes) +
           8 * (LaneOfThread() % 4) * (kDim >> group_shift_);
  }
  /// pairs[i]: what stands at `entry`, of slot 8 c, for slots 8 c + i and 8 c + 4 + i.
  __device__ void PairsOfTokens(const uint16_t* entry, uint32_t (&pairs)[4]) const {
    const int stride = kDim >> group_shift_;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      pairs[i] = entry[i * stride] | static_cast<uint32_t>(entry[(i + 4) * stride]) << 16;
    }
  }

  // ---- Places in a stage ------------------------------------------------------------------------

  /// Which of a load's pieces holds slots 4 r .. 4 r + 3 of its row c.
  __device__ static int PieceOfKeys(int c, int r) { return 8 * c + (r ^ 2 * c); }
  /// Of values that are read as matrices: where 32 channels, a piece, of slot 4 row + matrix stand.
  /// The rows of a matrix, which are read together, follow one another.
  __device__ static int PlaceOfPart(int matrix, int row, int part) {
    return 16 * (kParts * (8 * matrix + row) + (part ^ row * kParts / 8));
  }
  /// Where among the values the piece stands that is the `lane`-th in the block.
  __device__ static int PlaceOfPiece(int lane) {
    const int slot = lane / kPieces;
    return kTransposes ? PlaceOfPart(slot % 4, slot / 4, lane % kPieces)
                       : 16 * (lane ^ slot / 8 * 2);
  }

  /// What of a run's codes is the same for all chunks: what this lane copies. Rows of keys are four
  /// for all lanes together, of eight pieces; values are one piece after the other.
  __device__ void FindCodes(const DeviceCache& cache, const DeviceSegment& s, int head) {
    const uint32_t lane = LaneOfThread();
    codes_ = Planes(cache, s.keys, s.values, head);
    row_bytes_ = 4u << codes_.shift;
    const uint32_t of_keys = lane / 8 * row_bytes_ + lane % 8 * 16;
    codes_.first += of_keys;
    codes_.to_values += 16 * lane - of_keys;
  }

  /// The same of scales.
  __device__ void FindScales(const DeviceCache& cache, const DeviceSegment& s, int head) {
    const uint32_t lane = LaneOfThread();
    scales_ = Planes(cache, s.key_scales, s.value_scales, head);
    if constexpr (IsGrouped(kEncoding)) {
      group_shift_ = __ffs(s.group) - 1;
      Keep(group_shift_);
      unit_bytes_ = s.key_scales.unit_bytes;
      scales_.first += 16 * lane;
      // Lanes 0 .. 15 copy scales of values, the others zeros.
      const uint32_t of_values = lane / 16 * 2 * kDim + lane % 16 * 16;
      scales_.to_values += of_values - 16 * lane;
      scale_to_ = kScaleBytes + of_values;
      copies_value_scales_ = lane % 16 * 16 < uint32_t{kChunkSlots} * 2 * kDim >> group_shift_;
    } else {
      // Lanes 0 .. 7 copy scales of keys, 8 .. 15 those of values.
      scales_.first += (lane < 8 ? 0 : scales_.to_values) + lane % 8 * 16;
      scale_to_ = lane / 8 * kScaleBytes + lane % 8 * 16;
    }
    Keep(scale_to_);
  }

  /// Of the chunk that is copied next: asked for a chunk ahead.
  __device__ void FindBlocks() {
    if (next_ >= end_) return;
    code_block_ = codes_.BlockOf(next_);
    scale_block_ = scales_.BlockOf(next_);
  }

  __device__ void CopyNext(const DeviceCache& cache, uint32_t to_stage) {
    if (next_ < end_) {
      const auto block_bytes = static_cast<uint32_t>(cache.block_bytes);
      unsigned char* to = shared_ + to_stage;
      CopyCodes(codes_.first + uint64_t{code_block_} * block_bytes, to);
      const unsigned char* scales = scales_.first + uint64_t{scale_block_} * block_bytes;
      if constexpr (IsGrouped(kEncoding)) {
        CopyGroupScales(scales, to + kKeyBytes + kValueBytes);
      } else if (LaneOfThread() < 16) {
        copies_.Copy<16>(to + kKeyBytes + kValueBytes + scale_to_,
                         scales + 4 * scales_.InBlock(next_));
      }
      next_ += kChunkSlots;
      FindBlocks();
    }
    copies_.Commit();
  }

  __device__ void CopyCodes(const unsigned char* block, unsigned char* to) {
    const uint32_t in_block = codes_.InBlock(next_);
    const unsigned char* from = block + 4 * in_block;
    ZIGGURAT_UNROLL
    for (int load = 0; load < kLoads; ++load) {
      copies_.Copy<16>(to + key_to_ + 16 * kWarp * load, from + load * 4 * row_bytes_);
    }
    from = block + (codes_.to_values + in_block * kRowBytes);
    unsigned char* values = to + kKeyBytes;
    ZIGGURAT_UNROLL
    for (int i = 0; i < kChunkSlots * kPieces / kWarp; ++i) {
      // PlaceOfPiece(lane + 32 i): what depends on i alone is apart from the rest.
      const uint32_t place = kTransposes ? (value_to_ ^ 16 * i) + 128 * i
                                         : (value_to_ ^ PlaceOfPiece(kWarp * i) % 128) + 512 * i;
      copies_.Copy<16>(values + place, from + 16 * kWarp * i);
    }
  }

  /// Of the keys, those of all channels; of the values, those of the chunk's 32 tokens. Scales of a
  /// unit come before its zeros.
  __device__ void CopyGroupScales(const unsigned char* block, unsigned char* to) {
    const uint32_t in_block = scales_.InBlock(next_);
    const unsigned char* unit = block + (in_block >> group_shift_) * unit_bytes_;
    if (LaneOfThread() < kDim / 4) copies_.Copy<16>(to + 16 * LaneOfThread(), unit);
    if (copies_value_scales_) {
      const uint32_t before = in_block & ((1u << group_shift_) - 1);
      copies_.Copy<16>(to + scale_to_,
                       unit + (scales_.to_values + before * (2 * kDim >> group_shift_)));
    }
  }

  unsigned char* shared_;
  AsyncCopies copies_;
  Planes codes_, scales_;
  uint32_t row_bytes_ = 0;  ///< of cells, for all slots of a block
  uint32_t code_block_ = 0, scale_block_ = 0;
  int group_shift_ = 0;
  uint32_t unit_bytes_ = 0;
  uint32_t next_ = 0, end_ = 0;  ///< slots
  uint32_t stage_ = 0;           ///< the current one, in bytes
  // Where this lane's first pieces of keys, values and scales go in a stage.
  uint32_t key_to_ = 0, value_to_ = 0, scale_to_ = 0;
  bool copies_value_scales_ = false;
};

}  // namespace ziggurat::cuda

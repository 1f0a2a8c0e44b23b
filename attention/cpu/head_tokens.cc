#include "attention/cpu/head_tokens.h"

#include <algorithm>
#include <cstring>

#include "attention/cpu/write_kernels.h"
#include "attention/quantization.h"

namespace ziggurat::cpu {

// ---- Where codes lie ---------------------------------------------------------------------------

// A key is one lane of an area [cells][slots] of 4 bytes each, a value is contiguous.

void HeadTokens::LoadCodes(int slot, std::byte* codes) const {
  const uint32_t slots = codes_.slots_per_block, lane = slot % slots;
  const std::byte* area = AreaOf(pool_, codes_, head_, slot);
  if (side_ == kValues) {
    std::memcpy(codes, area + lane * token_bytes(), token_bytes());
    return;
  }
  const std::byte* from = area + size_t{4} * lane;
  for (size_t cell = 0; cell < token_bytes() / 4; ++cell) {
    std::memcpy(codes + 4 * cell, from + 4 * cell * slots, 4);
  }
}

void HeadTokens::StoreCodes(int first_slot, int count, const std::byte* codes) const {
  const uint32_t slots = codes_.slots_per_block;
  const size_t row_bytes = size_t{4} * slots;
  for (int t = 0, run = 0; t < count; t += run) {  // runs of slots in one block
    const uint32_t lane = (first_slot + t) % slots;
    run = std::min(count - t, static_cast<int>(slots - lane));
    std::byte* area = AreaOf(pool_, codes_, head_, first_slot + t);
    const std::byte* from = codes + t * token_bytes();
    if (side_ == kValues) {
      std::memcpy(area + lane * token_bytes(), from, run * token_bytes());
      continue;
    }
    const int cells = static_cast<int>(token_bytes() / 4);
    for (int i = 0; i < run; i += kTokensAtATime) {
      Avx2WriteKernels().store_keys(from + i * token_bytes(), std::min(run - i, kTokensAtATime),
                                    cells, area + 4 * (lane + i), row_bytes);
    }
  }
}

void HeadTokens::StoreGroupCodes(int first_slot, const std::byte* codes) const {
  const uint32_t slots = codes_.slots_per_block;
  for (int t = 0, run = 0; t < group_; t += run) {  // runs of slots in one block
    const uint32_t lane = (first_slot + t) % slots;
    run = std::min(group_ - t, static_cast<int>(slots - lane));
    std::byte* area = AreaOf(pool_, codes_, head_, first_slot + t);
    if (side_ == kValues) {
      std::memcpy(area + lane * token_bytes(), codes + t * token_bytes(), run * token_bytes());
      continue;
    }
    for (size_t cell = 0; cell < token_bytes() / 4; ++cell) {
      std::memcpy(area + 4 * (cell * slots + lane), codes + 4 * (cell * group_ + t),
                  size_t{4} * run);
    }
  }
}

// ---- What codes are ----------------------------------------------------------------------------

void HeadTokens::Encode(int slot, const float* x, std::byte* codes) const {
  const WriteKernels& kernels = Avx2WriteKernels();
  switch (encoding_) {
    case Encoding::kF32:
      std::memcpy(codes, x, token_bytes());
      break;
    case Encoding::kBf16: {
      auto* halves = reinterpret_cast<uint16_t*>(codes);
      for (int c = 0; c < head_dim_; ++c) halves[c] = FloatToBf16(x[c]);
      break;
    }
    case Encoding::kInt8:
      *Scale(slot) = kernels.encode_int8(x, head_dim_, reinterpret_cast<uint8_t*>(codes));
      break;
    case Encoding::kFp8:
      *Scale(slot) = kernels.encode_fp8(x, head_dim_, reinterpret_cast<uint8_t*>(codes));
      break;
    case Encoding::kInt4:
    case Encoding::kInt2:
      break;  // written in whole groups
  }
}

void HeadTokens::Write(int slot, const float* x) const {
  alignas(4) std::byte codes[sizeof(float) * kMaxHeadDim];
  Encode(slot, x, codes);
  StoreCodes(slot, codes);
}

void HeadTokens::EncodeValue(const float* x, uint16_t* scales, uint16_t* zeros,
                             std::byte* codes) const {
  const int bits = EncodingBits(encoding_);
  if (group_ % 8 == 0) {
    Avx2WriteKernels().encode_value(x, group_, head_dim_, bits, scales, zeros, codes);
    return;
  }
  std::memset(codes, 0, token_bytes());
  for (int first = 0; first < head_dim_; first += group_) {
    const GroupScale scale = GroupScaleOf(x + first, group_, 1, bits);
    scales[first / group_] = FloatToBf16(scale.scale);
    zeros[first / group_] = FloatToBf16(scale.zero);
    for (int c = first; c < first + group_; ++c) {
      codes[c * bits / 8] |= std::byte{GroupCode(x[c], scale, bits)} << (c * bits % 8);
    }
  }
}

void HeadTokens::WriteGroup(int first_slot, const float* x, std::vector<uint32_t>* room) const {
  room->resize(std::max(room->size(), group_ * token_bytes() / 4));
  auto* codes = reinterpret_cast<std::byte*>(room->data());
  auto* scales = reinterpret_cast<uint16_t*>(GroupScales(first_slot));
  uint16_t* zeros = scales + head_dim_;
  if (side_ == kKeys) {
    Avx2WriteKernels().encode_keys(x, group_, head_dim_, EncodingBits(encoding_), scales, zeros,
                                   room->data());
  } else {
    const int parts = head_dim_ / group_;  // groups of channels
    for (int t = 0; t < group_; ++t) {
      EncodeValue(x + static_cast<size_t>(t) * head_dim_, scales + t * parts, zeros + t * parts,
                  codes + t * token_bytes());
    }
  }
  StoreGroupCodes(first_slot, codes);
}

void HeadTokens::Read(int slot, float* x) const {
  if (encoding_ == Encoding::kF32) {
    LoadCodes(slot, reinterpret_cast<std::byte*>(x));
    return;
  }
  alignas(4) std::byte codes[sizeof(float) * kMaxHeadDim];
  LoadCodes(slot, codes);
  if (encoding_ == Encoding::kBf16) {
    const auto* halves = reinterpret_cast<const uint16_t*>(codes);
    for (int c = 0; c < head_dim_; ++c) x[c] = Bf16ToFloat(halves[c]);
  } else if (encoding_ == Encoding::kInt8) {
    const float scale = *Scale(slot);
    for (int c = 0; c < head_dim_; ++c) x[c] = scale * static_cast<int8_t>(codes[c]);
  } else if (encoding_ == Encoding::kFp8) {
    const float scale = *Scale(slot);
    for (int c = 0; c < head_dim_; ++c) x[c] = scale * E4m3ToFloat(static_cast<uint8_t>(codes[c]));
  } else {
    const int bits = EncodingBits(encoding_), parts = head_dim_ / group_;
    const auto* scales = reinterpret_cast<const uint16_t*>(GroupScales(slot));
    const uint16_t* of_token = scales + slot % group_ * parts;
    for (int c = 0; c < head_dim_; ++c) {
      const uint16_t* scale = side_ == kKeys ? scales + c : of_token + c / group_;
      const int code = std::to_integer<int>(codes[c * bits / 8]) >> (c * bits % 8);
      x[c] = Bf16ToFloat(scale[0]) * static_cast<float>(code & LargestCode(bits)) +
             Bf16ToFloat(scale[head_dim_]);
    }
  }
}

}  // namespace ziggurat::cpu

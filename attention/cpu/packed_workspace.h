// Queries and keys of a contiguous workspace, packed for the micro kernels.
#pragma once

#include "attention/cpu/score_tiles.h"

namespace ziggurat::cpu {
namespace {

/// Packs keys [begin, begin + count) into tiles of [rows][kLanes] cells; lanes past the last key
/// are zero.
template <class Keys>
inline void PackKeys(const std::byte* k, size_t row_bytes, int rows, int begin, int count,
                     std::byte* packed) {
  constexpr int kLanes = Keys::Simd::kLanes;
  for (int t = 0; t < count; t += kLanes) {
    const std::byte* from = k + (begin + t) * row_bytes;
    const int lanes = Smaller(kLanes, count - t);
    if (lanes < kLanes) __builtin_memset(packed, 0, static_cast<size_t>(rows) * kLanes * 4);
    for (int r = 0; r < rows; ++r) {
      std::byte* to = packed + static_cast<size_t>(r) * kLanes * 4;
      for (int lane = 0; lane < lanes; ++lane) {
        __builtin_memcpy(to + lane * 4, from + lane * row_bytes + r * 4, 4);
      }
    }
    packed += static_cast<size_t>(rows) * kLanes * 4;
  }
}

/// Widens query rows of the workspace to f32 and packs them: row i is token i / group_size, query
/// head i % group_size of the group.
template <class Keys>
inline void PackQueryRows(const std::byte* q, size_t q_row_bytes, int group_size, int count,
                          int head_dim, float* packed) {
  using V = typename Keys::Simd;
  using Element = typename Keys::Element;
  float channels[256 + 16];
  PackQueries<Keys>(
      count, head_dim,
      [&](int i) -> const float* {
        const std::byte* row = q + static_cast<size_t>(i / group_size) * q_row_bytes;
        const auto* x = reinterpret_cast<const typename Element::Type*>(row) +
                        static_cast<size_t>(i % group_size) * head_dim;
        ForEachVector<V>(head_dim, [&](size_t c, int lanes) {
          V::Store(channels + c, LoadUpTo<V, Element>(x + c, lanes));
        });
        return channels;
      },
      packed);
}

/// Scores of `size` queries against the first `width` keys of a packed chunk.
template <class Keys>
inline void ScorePackedKeys(int size, const float* query, int rows, const std::byte* packed_keys,
                            int width, float scale, float* scores) {
  constexpr int kLanes = Keys::Simd::kLanes;
  for (int t = 0; t < width; t += kLanes) {
    const std::byte* tile = packed_keys + static_cast<size_t>(t) * rows * 4;
    ScoreSubBlock<Keys, TileRead::kWhole>(size, query, rows, tile, kLanes * 4, nullptr, scale,
                                          scores + t);
  }
}

}  // namespace
}  // namespace ziggurat::cpu

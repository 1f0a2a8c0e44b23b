// What is fetched from memory before it is needed, and in which order it is needed.
#pragma once

#include <xmmintrin.h>

#include <cstddef>

namespace ziggurat::cpu {
namespace {

/// How decode attention reads the blocks of a chunk (chunk.h), as suits the CPU.
enum class ReadOrder {
  /// All side by side, keys and then values; with every line, the one in its place of the next head
  /// is fetched, into L2.
  kWholeChunk,
  /// All side by side, keys and then values, head after head: so every block is one run of
  /// addresses; with every line, the one BytesAlongBlock further on in its block is fetched, into
  /// L1. Jobs whose heads do not follow each other so are read as kWholeChunk.
  kAlongBlocks,
};

/// Fetches into that cache. Always inlined: GCC drops calls of what only prefetches.
template <_mm_hint kCache = _MM_HINT_T1>
__attribute__((always_inline)) inline void Prefetch(const std::byte* p, size_t bytes = 64) {
  for (size_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + line), kCache);
  }
}
template <ReadOrder kOrder>
__attribute__((always_inline)) inline void Prefetch(const std::byte* p, size_t bytes = 64) {
  Prefetch<kOrder == ReadOrder::kWholeChunk ? _MM_HINT_T1 : _MM_HINT_T0>(p, bytes);
}

}  // namespace
}  // namespace ziggurat::cpu

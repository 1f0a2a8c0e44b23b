// The best candidates of each head.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

/// An integer that orders like (score, then lower index first). NaN is as -infinity, so that there
/// is always a total order; -0 equals +0.
uint64_t RankOf(float score, uint32_t index) {
  if (score != score) score = -std::numeric_limits<float>::infinity();
  uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(bits) << 32 | ~index;
}

}  // namespace

void CpuBackend::SelectBest(const float* scores, size_t stride, int num_heads, int candidates,
                            int best, int32_t* indices) {
  if (best <= 0) return;
  const int threads =
      static_cast<size_t>(num_heads) * candidates < kElementsWorthThreads ? 1 : threads_;
  ParallelFor(threads, num_heads, [&](size_t g, int) {
    const float* head = scores + g * stride;
    std::vector<uint64_t> ranks(candidates);
    for (int j = 0; j < candidates; ++j) ranks[j] = RankOf(head[j], j);
    if (best < candidates) {
      std::nth_element(ranks.begin(), ranks.begin() + best, ranks.end(), std::greater<>());
    }
    int32_t* out = indices + g * best;
    for (int i = 0; i < best; ++i) out[i] = static_cast<int32_t>(~static_cast<uint32_t>(ranks[i]));
    std::sort(out, out + best);
  });
}

}  // namespace ziggurat::cpu

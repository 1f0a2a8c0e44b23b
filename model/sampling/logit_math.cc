#include "model/sampling/logit_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// A version for each width of vectors, of which the machine's is taken when the program starts: the
// same operations in the same order, so the same bits. Sanitizers see no such choice.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ZIGGURAT_FOR_EACH_VECTOR_WIDTH \
  __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define ZIGGURAT_FOR_EACH_VECTOR_WIDTH
#endif

namespace ziggurat {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLargestFloat = std::numeric_limits<float>::max();
/// Tokens that are passed over together where none of them matters.
constexpr size_t kSkippedBlock = 64;

/// NaN stays NaN.
__attribute__((always_inline)) inline float Clamped(float logit) {
  return logit > kLargestFloat ? kLargestFloat : logit;
}

/// e^x for x <= 0: x = n ln 2 + r with |r| <= ln(2) / 2, then a polynomial in r (Taylor to r^6/720:
/// what is left out is under 2e-7) times 2^n.
__attribute__((always_inline)) inline float ExpOfNonPositive(float x) {
  constexpr float kUnderflow = -87;
  constexpr float kRoundingTrick = 12582912;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // few bits: n times it is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  const float clipped = x > kUnderflow ? x : kUnderflow;
  const float n = (clipped * kLog2E + kRoundingTrick) - kRoundingTrick;
  const float r = (clipped - n * kLn2High) - n * kLn2Low;
  float sum = 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const float power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x > kUnderflow ? sum * power : 0.0f;
}

/// Sums in a fixed number of lanes: the order that vector units take, prescribed.
__attribute__((always_inline)) inline double BlockSum(const float* weights, size_t count) {
  constexpr size_t kSumLanes = 8;
  double lanes[kSumLanes] = {};
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      lanes[lane] += static_cast<double>(weights[i + lane]);
    }
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += static_cast<double>(weights[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

float LargestLogit(absl::Span<const float> logits) {
  // Vectors that every machine has: of wider ones, and of arrays, GCC 12 makes scalars.
  using Floats = float __attribute__((vector_size(16)));
  constexpr size_t kVectors = 4, kOfVector = 4, kAtOnce = kVectors * kOfVector;
  Floats most[kVectors];
  for (Floats& of : most) of = Floats{kLowest, kLowest, kLowest, kLowest};
  size_t i = 0;
  for (; i + kAtOnce <= logits.size(); i += kAtOnce) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      Floats next;
      std::memcpy(&next, logits.data() + i + v * kOfVector, sizeof(next));
      most[v] = next > most[v] ? next : most[v];  // of which a NaN in `next` loses
    }
  }
  float largest = kLowest;
  for (; i < logits.size(); ++i) largest = logits[i] > largest ? logits[i] : largest;
  for (const Floats& of : most) {
    for (size_t lane = 0; lane < kOfVector; ++lane) {
      largest = of[lane] > largest ? of[lane] : largest;
    }
  }
  return Clamped(largest);
}

int32_t BestToken(absl::Span<const float> logits) {
  // A block at a time, so that the token is looked for in one of them alone.
  constexpr size_t kBlock = 1024;
  float largest = kLowest;
  absl::Span<const float> best;
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    const absl::Span<const float> block = logits.subspan(i, kBlock);
    if (const float of_block = LargestLogit(block); of_block > largest) {
      largest = of_block;
      best = block;
    }
  }
  if (largest == kLowest) return -1;
  // >= finds plus infinity as well, and no NaN.
  const auto found =
      std::find_if(best.begin(), best.end(), [largest](float logit) { return logit >= largest; });
  return static_cast<int32_t>(&*found - logits.data());
}

std::vector<int32_t> BestTokens(absl::Span<const float> logits, size_t count) {
  count = std::min(count, logits.size());
  if (count == 0) return {};
  const auto better = [&](int32_t a, int32_t b) {
    const float of_a = Clamped(logits[static_cast<size_t>(a)]);
    const float of_b = Clamped(logits[static_cast<size_t>(b)]);
    return of_a != of_b ? of_a > of_b : a < b;
  };
  // Collects what beats the worst of the best so far, and whenever there are twice as many (and a
  // few) as asked for, drops the worse part. Ids ascend, so an equal logit that comes later loses.
  std::vector<int32_t> best;
  const size_t room = std::min(logits.size(), 2 * count + 64);
  best.reserve(room);
  float threshold = kLowest;
  const auto cut = [&] {
    const auto last = best.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(best.begin(), last, best.end(), better);
    threshold = Clamped(logits[static_cast<size_t>(*last)]);
    best.resize(count);
  };
  for (size_t first = 0; first < logits.size(); first += kSkippedBlock) {
    const absl::Span<const float> block = logits.subspan(first, kSkippedBlock);
    if (!(LargestLogit(block) > threshold)) continue;
    for (size_t id = first; id < first + block.size(); ++id) {
      if (!(Clamped(logits[id]) > threshold)) continue;
      if (best.size() == room) {
        cut();
        if (!(Clamped(logits[id]) > threshold)) continue;
      }
      best.push_back(static_cast<int32_t>(id));
    }
  }
  if (best.size() > count) cut();
  std::sort(best.begin(), best.end(), better);
  return best;
}

float Weight(float logit, float best, float temperature) {
  return ExpOfNonPositive((Clamped(logit) - best) / temperature);
}

ZIGGURAT_FOR_EACH_VECTOR_WIDTH
void FillWeights(absl::Span<const float> logits, float best, float temperature, float least,
                 std::vector<float>& weights) {
  weights.resize(logits.size());
  const float* from = logits.data();
  float* to = weights.data();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = ExpOfNonPositive((Clamped(from[i]) - best) / temperature);
    to[i] = weight >= least ? weight : 0.0f;
  }
}

ZIGGURAT_FOR_EACH_VECTOR_WIDTH
double SumWeights(absl::Span<const float> weights, std::vector<double>& block_sums) {
  block_sums.clear();
  double total = 0;
  for (size_t first = 0; first < weights.size(); first += kWeightBlock) {
    const size_t count = std::min(kWeightBlock, weights.size() - first);
    block_sums.push_back(BlockSum(weights.data() + first, count));
    total += block_sums.back();
  }
  return total;
}

void KeepAtLeast(float least, absl::Span<float> weights, std::vector<int32_t>& kept) {
  least = std::max(least, std::numeric_limits<float>::min());
  size_t count = 0;
  for (size_t first = 0; first < weights.size(); first += kSkippedBlock) {
    const absl::Span<float> block = weights.subspan(first, kSkippedBlock);
    if (LargestLogit(block) < least) {
      std::fill(block.begin(), block.end(), 0.0f);
      continue;
    }
    if (kept.size() < count + kSkippedBlock) kept.resize(2 * (count + kSkippedBlock));
    for (size_t i = 0; i < block.size(); ++i) {  // without branches, which nothing foretells
      kept[count] = static_cast<int32_t>(first + i);
      count += static_cast<size_t>(block[i] >= least);
    }
    for (float& weight : block) weight = weight >= least ? weight : 0.0f;
  }
  kept.resize(count);
}

void KeepBestMass(absl::Span<const float> logits, float best, float temperature, double total,
                  double wanted, std::vector<float>& weights, std::vector<int32_t>& candidates) {
  // Range r holds exponents (best - logit) / temperature in [r, r + 1) / kRangesPerUnit; weights
  // are 0 from 87 on. The mapping never falls as logits fall, so ranges are in the order of logits.
  constexpr float kRangesPerUnit = 32;
  constexpr size_t kRanges = 87 * 32 + 1;
  const auto range_of = [&](int32_t id) {
    const float exponent = (best - Clamped(logits[static_cast<size_t>(id)])) / temperature;
    return std::min(kRanges - 1, static_cast<size_t>(exponent * kRangesPerUnit));
  };
  // Of most vocabularies nearly all tokens can be told from their weights alone: those below
  // `least` are together less than half of what is left out.
  const double least = (total - wanted) / 2 / static_cast<double>(weights.size());
  KeepAtLeast(static_cast<float>(least), absl::MakeSpan(weights), candidates);
  const auto weight_of = [&](int32_t id) -> float& { return weights[static_cast<size_t>(id)]; };
  std::vector<double> mass(kRanges, 0.0);
  for (const int32_t id : candidates) mass[range_of(id)] += static_cast<double>(weight_of(id));
  size_t cut = 0;
  double kept = 0;
  while (cut + 1 < kRanges && kept + mass[cut] < wanted) kept += mass[cut++];

  std::vector<int32_t> at_cut;
  for (const int32_t id : candidates) {
    const size_t range = range_of(id);
    if (range > cut) weight_of(id) = 0;
    if (range == cut) at_cut.push_back(id);
  }
  std::stable_sort(at_cut.begin(), at_cut.end(), [&](int32_t a, int32_t b) {
    return Clamped(logits[static_cast<size_t>(a)]) > Clamped(logits[static_cast<size_t>(b)]);
  });
  for (const int32_t id : at_cut) {
    const double weight = static_cast<double>(weight_of(id));
    if (kept >= wanted && kept > 0) weight_of(id) = 0;
    kept += weight;
  }
}

}  // namespace ziggurat

// Kernels in memory of just the size that is promised to them, which holds nothing but NaN before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "attention/bfloat16.h"
#include "attention/cpu/kernels.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::testing {
namespace {

using cpu::CpuKernels;

/// NaN, between bytes that must stay.
class GuardedFloats {
 public:
  explicit GuardedFloats(size_t floats)
      : memory_(floats + 3 * kGuard, kCanary), begin_(memory_.data()) {
    while (reinterpret_cast<uintptr_t>(begin_) % 64 != 0 || begin_ < memory_.data() + kGuard) {
      ++begin_;
    }
    end_ = begin_ + floats;
    std::fill(begin_, end_, std::numeric_limits<float>::quiet_NaN());
  }
  float* data() { return begin_; }
  bool is_intact() const {
    const auto is_canary = [](float x) { return x == kCanary; };
    return std::all_of(memory_.data(), static_cast<const float*>(begin_), is_canary) &&
           std::all_of(static_cast<const float*>(end_), memory_.data() + memory_.size(), is_canary);
  }

 private:
  static constexpr size_t kGuard = 1024;
  static constexpr float kCanary = 123456.0f;
  std::vector<float> memory_;
  float* begin_;
  float* end_ = nullptr;
};

class KernelScratch : public ::testing::TestWithParam<CpuLevel> {
 protected:
  std::vector<uint16_t> Random(size_t count, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    std::vector<uint16_t> x(count);
    for (uint16_t& value : x) value = FloatToBf16(normal(random_));
    return x;
  }
  const CpuKernels& kernels() const { return cpu::KernelsOf(GetParam()); }

  std::mt19937 random_{11};
};

/// The queries of the last `count` of n tokens, of one KV head.
struct Prompt {
  int dim, group, n, count;
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  int first() const { return n - count; }
  size_t head_bytes() const { return dim * sizeof(uint16_t); }

  /// Scores of query row i against the keys that it sees.
  std::vector<double> Scores(const std::vector<uint16_t>& q, const std::vector<uint16_t>& k,
                             int i) const {
    std::vector<double> scores(first() + i / group + 1);
    for (size_t t = 0; t < scores.size(); ++t) {
      for (int c = 0; c < dim; ++c) {
        scores[t] += double{Bf16ToFloat(q[size_t{1} * i * dim + c])} * Bf16ToFloat(k[t * dim + c]);
      }
      scores[t] *= scale();
    }
    return scores;
  }
};

double LogSumExp(const std::vector<double>& scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - highest);
  return highest + std::log(sum);
}

cpu::PrefillJob JobOf(const Prompt& p, const std::vector<uint16_t>& q,
                      const std::vector<uint16_t>& k, const std::vector<uint16_t>& v,
                      std::vector<uint16_t>* out, std::vector<float>* lse, GuardedFloats& scratch) {
  return {.head_dim = p.dim,
          .group_size = p.group,
          .scale = p.scale(),
          .first = p.first(),
          .count = p.count,
          .q = reinterpret_cast<const std::byte*>(q.data()),
          .out = reinterpret_cast<std::byte*>(out->data()),
          .q_row_bytes = p.group * p.head_bytes(),
          .k = reinterpret_cast<const std::byte*>(k.data()),
          .v = reinterpret_cast<const std::byte*>(v.data()),
          .kv_row_bytes = p.head_bytes(),
          .lse = lse->data(),
          .lse_stride = static_cast<size_t>(p.group),
          .scratch = scratch.data()};
}

/// Of attention's output and log-sum-exp against plain sums.
struct LargestError {
  double of_output = 0, of_lse = 0;

  /// Row `row`, by the scores of the tokens that it attends to.
  void See(const std::vector<double>& scores, int dim, int row, const std::vector<uint16_t>& v,
           const std::vector<uint16_t>& out, const std::vector<float>& lse) {
    const double expected = LogSumExp(scores);
    of_lse = std::max(of_lse, std::abs(expected - lse[row]) / (1 + std::abs(expected)));
    for (int c = 0; c < dim; ++c) {
      double mean = 0;
      for (size_t t = 0; t < scores.size(); ++t) {
        mean += std::exp(scores[t] - expected) * Bf16ToFloat(v[t * dim + c]);
      }
      const double error = std::abs(mean - Bf16ToFloat(out[size_t{1} * row * dim + c]));
      if (!(error <= of_output)) of_output = error;  // NaN is the worst
    }
  }
};

const std::vector<Prompt> kPrompts = {{8, 1, 1, 1},    {8, 5, 3, 3},     {40, 1, 15, 15},
                                      {40, 3, 40, 11}, {64, 16, 1, 1},   {64, 17, 2, 1},
                                      {64, 8, 130, 4}, {96, 4, 140, 64}, {128, 1, 33, 33},
                                      {128, 33, 5, 3}, {256, 1, 17, 2},  {256, 40, 129, 6}};

TEST_P(KernelScratch, PrefillNeedsNoMoreAndReadsNothingThatItDidNotWrite) {
  for (const Prompt& p : kPrompts) {
    // Large scores too: weights are 0 then but for one.
    for (const float size : {1.0f, 20.0f}) {
      const int rows = p.count * p.group;
      const auto q = Random(size_t{1} * rows * p.dim, size), k = Random(size_t{1} * p.n * p.dim);
      const auto v = Random(k.size());
      std::vector<uint16_t> out(q.size());
      std::vector<float> lse(rows);
      GuardedFloats scratch(cpu::PrefillScratchFloats(rows, p.dim));
      kernels().element[1].prefill(JobOf(p, q, k, v, &out, &lse, scratch));
      EXPECT_TRUE(scratch.is_intact()) << p.dim << " x " << rows;
      LargestError error;
      for (int i = 0; i < rows; ++i) {
        error.See(p.Scores(q, k, i), p.dim, i, v, out, lse);
      }
      EXPECT_LE(error.of_output, 2e-2) << p.dim << " x " << rows;
      EXPECT_LE(error.of_lse, 1e-5) << p.dim << " x " << rows;
    }
  }
}

TEST_P(KernelScratch, DistantPrefillNeedsNoMoreAndReadsNothingThatItDidNotWrite) {
  struct Mask {
    int sinks, recent;
    double skip;  // 2: no distant part is left out; 0: every one is
  };
  for (const Prompt& p : kPrompts) {
    for (const Mask& mask : {Mask{0, 1, 2}, Mask{2, 5, 2}, Mask{4, 130, 2}, Mask{1, 3, 0}}) {
      const int rows = p.count * p.group;
      const auto q = Random(size_t{1} * rows * p.dim), k = Random(size_t{1} * p.n * p.dim);
      const auto low_q = Random(q.size()), low_k = Random(k.size()), v = Random(k.size());
      std::vector<uint16_t> out(q.size());
      std::vector<float> lse(rows);
      uint64_t attended = 0, skipped = 0;
      GuardedFloats scratch(cpu::DistantScratchFloats(rows, p.dim));
      kernels().element[1].distant_prefill(
          {.near = JobOf(p, q, k, v, &out, &lse, scratch),
           .low_q = reinterpret_cast<const std::byte*>(low_q.data()),
           .low_k = reinterpret_cast<const std::byte*>(low_k.data()),
           .sinks = mask.sinks,
           .recent = mask.recent,
           .skip = mask.skip,
           .attended = &attended,
           .skipped = &skipped});
      EXPECT_TRUE(scratch.is_intact()) << p.dim << " x " << rows;
      uint64_t have_distant = 0;
      LargestError error;
      for (int i = 0; i < rows; ++i) {
        const int position = p.first() + i / p.group;
        std::vector<double> scores = p.Scores(q, k, i);
        const std::vector<double> low_scores = p.Scores(low_q, low_k, i);
        for (int t = mask.sinks; t <= position - mask.recent; ++t) {
          scores[t] = mask.skip == 0 ? -INFINITY : low_scores[t];
        }
        have_distant += i % p.group == 0 && position - mask.recent >= mask.sinks ? 1 : 0;
        error.See(scores, p.dim, i, v, out, lse);
      }
      EXPECT_LE(error.of_output, 2e-2) << p.dim << " x " << rows << " sinks " << mask.sinks;
      EXPECT_LE(error.of_lse, 1e-5) << p.dim << " x " << rows << " sinks " << mask.sinks;
      EXPECT_EQ(mask.skip == 0 ? skipped : attended, have_distant);
      EXPECT_EQ(mask.skip == 0 ? attended : skipped, 0u);
    }
  }
}

TEST_P(KernelScratch, ColumnSumsNeedNoMoreAndReadNothingThatTheyDidNotWrite) {
  for (const Prompt& p : kPrompts) {
    const int rows = p.count * p.group;
    const auto q = Random(size_t{1} * rows * p.dim), k = Random(size_t{1} * p.n * p.dim);
    std::vector<float> lse(rows), sums(p.n);
    std::vector<double> expected(p.n);
    for (int i = 0; i < rows; ++i) {
      const std::vector<double> scores = p.Scores(q, k, i);
      lse[i] = static_cast<float>(LogSumExp(scores));
      for (size_t t = 0; t < scores.size(); ++t) expected[t] += std::exp(scores[t] - lse[i]);
    }
    GuardedFloats scratch(cpu::ColumnScratchFloats(p.group, p.dim));
    kernels().element[1].column_sums({.head_dim = p.dim,
                                      .group_size = p.group,
                                      .scale = p.scale(),
                                      .first = p.first(),
                                      .count = p.count,
                                      .q = reinterpret_cast<const std::byte*>(q.data()),
                                      .q_row_bytes = p.group * p.head_bytes(),
                                      .lse = lse.data(),
                                      .lse_stride = static_cast<size_t>(p.group),
                                      .k = reinterpret_cast<const std::byte*>(k.data()),
                                      .kv_row_bytes = p.head_bytes(),
                                      .begin = 0,
                                      .end = p.n,
                                      .sums = sums.data(),
                                      .head_stride = 0,
                                      .scratch = scratch.data()});
    EXPECT_TRUE(scratch.is_intact()) << p.dim << " x " << rows;
    for (int t = 0; t < p.n; ++t) {
      EXPECT_NEAR(sums[t], expected[t], 1e-4 * (1 + expected[t])) << p.dim << " x " << rows;
    }
  }
}

/// The memory of a segment in bf16, in int8, or in codes in groups of 32.
struct DecodedSegment {
  static constexpr int kHeads = 3;

  DecodedSegment(int head_dim, int bits, int tokens)
      : dim(head_dim), is_coded(bits < 16), is_grouped(bits < 8), slots(is_coded ? 32 : 16) {
    row_bytes = static_cast<size_t>(dim) * bits / 8;
    area = row_bytes * slots;
    // Of scales: those of a group and its zeros, or one f32 of each slot.
    unit = is_grouped ? size_t{4} * dim : is_coded ? size_t{4} * slots : 0;
    block_bytes = 2 * kHeads * (area + unit);
    const int count = (tokens + slots - 1) / slots;
    memory.assign(block_bytes * count, std::byte{0xff});
    for (int b = count - 1; b >= 0; --b) blocks.push_back(b);
  }
  /// Codes at random; numbers of bf16 from `number`, but NaN where there is no such token.
  template <class Number>
  void Fill(int tokens, Number number, std::mt19937& random) {
    for (size_t i = 0; i < memory.size(); i += 2) {
      const size_t at = i % block_bytes, scales_at = 2 * kHeads * area;
      const size_t value_scales_at = scales_at + kHeads * unit;
      size_t slot = 0;
      if (at >= value_scales_at) {
        slot = is_grouped ? (at - value_scales_at) % (unit / 2) / (unit / 2 / slots)
                          : (at - value_scales_at) % unit / 4;
      } else if (at >= scales_at) {
        slot = is_grouped ? 0 : (at - scales_at) % unit / 4;
      } else if (at % (2 * area) >= area) {
        slot = at % area / row_bytes;
      } else {
        slot = at / 4 % slots;
      }
      const size_t token = (blocks.size() - 1 - i / block_bytes) * slots + slot;
      uint16_t word = token < static_cast<size_t>(tokens) ? number() : 0x7fc0;
      if (is_coded && at < scales_at) word = static_cast<uint16_t>(random());
      std::memcpy(&memory[i], &word, 2);
    }
  }
  cpu::HeadBlocks Plane(size_t offset, size_t stride) const {
    return {memory.data() + offset, block_bytes, stride,
            blocks.data(),          slots,       static_cast<uint32_t>(unit)};
  }
  cpu::DecodeJob Job(int group, int tokens, const float* q, float* scratch, float* out,
                     float* lse) const {
    cpu::DecodeJob job = {};
    job.head_dim = dim;
    job.num_heads = kHeads;
    job.group_size = group;
    job.scale = 1 / std::sqrt(static_cast<float>(dim));
    job.q = q;
    job.row_bytes = row_bytes;
    job.code_group = is_grouped ? static_cast<int>(slots) : 0;
    job.keys = Plane(0, 2 * area);  // a head's values behind its keys
    job.values = Plane(area, 2 * area);
    if (is_coded) {
      job.key_scales = Plane(2 * kHeads * area, unit);
      job.value_scales = Plane(kHeads * (2 * area + unit), unit);
    }
    job.end = tokens;
    job.scratch = scratch;
    job.out = out;
    job.lse = lse;
    return job;
  }

  int dim;
  bool is_coded, is_grouped;
  uint32_t slots;  // of a block, and of a group of codes
  size_t row_bytes, area, unit, block_bytes;
  std::vector<std::byte> memory;
  std::vector<uint32_t> blocks;
};

struct CodedIn {
  int bits;
  cpu::BlockEncoding encoding;
};
constexpr CodedIn kEncodings[] = {
    {16, cpu::kBf16Blocks}, {8, cpu::kInt8Blocks}, {4, cpu::kInt4Blocks}, {2, cpu::kInt2Blocks}};

TEST_P(KernelScratch, DecodeNeedsNoMoreAndReadsNothingThatItDidNotWrite) {
  std::normal_distribution<float> normal(0, 1);
  for (const auto& [bits, encoding] : kEncodings) {
    for (const int dim : {64, 96, 128, 256}) {
      if (dim * bits % 128 != 0) continue;
      for (const int group : {1, 2, 5, 8, 11, 16, 17}) {
        const int tokens = 128 + 7 * group;
        DecodedSegment segment(dim, bits, tokens);
        segment.Fill(
            tokens, [&] { return FloatToBf16(normal(random_)); }, random_);
        const int rows = DecodedSegment::kHeads * group;
        std::vector<float> q(size_t{1} * rows * dim);
        for (float& x : q) x = Bf16ToFloat(FloatToBf16(normal(random_)));
        GuardedFloats scratch(cpu::DecodeScratchFloats(rows, dim)), out(q.size()), lse(rows);
        kernels().blocks[encoding].decode_rounded(
            segment.Job(group, tokens, q.data(), scratch.data(), out.data(), lse.data()));
        EXPECT_TRUE(scratch.is_intact() && out.is_intact() && lse.is_intact())
            << bits << " bits, " << dim << " x " << group;

        std::vector<float> expected(q.size()), expected_lse(rows),
            room(cpu::DecodeScratchFloats(rows, dim) + 16);
        float* aligned = room.data();
        while (reinterpret_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
        cpu::KernelsOf(CpuLevel::kAvx2)
            .blocks[encoding]
            .decode(segment.Job(group, tokens, q.data(), aligned, expected.data(),
                                expected_lse.data()));
        double worst = 0, largest = 0;
        for (size_t i = 0; i < q.size(); ++i) {
          const double error = std::abs(expected[i] - out.data()[i]);
          if (!(error <= worst)) worst = error;  // NaN is the worst
          largest = std::max(largest, std::abs(double{expected[i]}));
        }
        EXPECT_LE(worst, 5e-3 * largest) << bits << " bits, " << dim << " x " << group;
        for (int i = 0; i < rows; ++i) {
          EXPECT_NEAR(lse.data()[i], expected_lse[i], 2e-3 * (1 + std::abs(expected_lse[i])));
        }
      }
    }
  }
}

TEST_P(KernelScratch, SlotWeightsNeedNoMoreAndReadNothingThatTheyDidNotWrite) {
  constexpr int kHeads = DecodedSegment::kHeads;
  std::normal_distribution<float> normal(0, 1);
  for (const auto& [bits, encoding] : kEncodings) {
    for (const int dim : {64, 96, 128, 256}) {
      if (dim * bits % 128 != 0) continue;
      for (const int group : {1, 2, 5, 8, 17}) {
        const int tokens = 128 + 7 * group, rows = kHeads * group;
        DecodedSegment segment(dim, bits, tokens);
        segment.Fill(
            tokens, [&] { return FloatToBf16(normal(random_)); }, random_);
        std::vector<float> q(size_t{1} * rows * dim);
        for (float& x : q) x = Bf16ToFloat(FloatToBf16(normal(random_)));
        GuardedFloats room(cpu::DecodeScratchFloats(rows, dim)), out(q.size()), lse(rows);
        cpu::KernelsOf(CpuLevel::kAvx2)
            .blocks[encoding]
            .decode(segment.Job(group, tokens, q.data(), room.data(), out.data(), lse.data()));
        GuardedFloats scratch(cpu::DecodeScratchFloats(rows, dim)), sums(kHeads * tokens);
        kernels().blocks[encoding].slot_weights(
            segment.Job(group, tokens, q.data(), scratch.data(), nullptr, nullptr), lse.data(),
            sums.data());
        EXPECT_TRUE(scratch.is_intact() && sums.is_intact())
            << bits << " bits, " << dim << " x " << group;
        for (int head = 0; head < kHeads; ++head) {
          const float* const of_head = sums.data() + size_t{1} * head * tokens;
          const double sum = std::accumulate(of_head, of_head + tokens, 0.0);
          EXPECT_NEAR(sum, group, 1e-3 * group) << bits << " bits, " << dim << " x " << group;
        }
      }
    }
  }
}

TEST_P(KernelScratch, ProductsReadNothingThatTheyDidNotWrite) {
  const cpu::ProductKernels& product = kernels().product;
  constexpr int kPanel = 64;
  for (const int in : {2, 30, 34, 256, 2050}) {
    for (const int rows : {1, 15, 17, 33, 48, 71, 128}) {
      const auto x = Random(size_t{1} * rows * in), weight = Random(size_t{1} * kPanel * in);
      // Rows of a panel hold two inputs of every output side by side.
      std::vector<uint16_t> panel(size_t{1} * (in + 31) / 32 * 32 * kPanel);
      for (int o = 0; o < kPanel; ++o) {
        for (int i = 0; i < in; ++i) {
          panel[(size_t{1} * (i / 2) * kPanel + o) * 2 + i % 2] = weight[size_t{1} * o * in + i];
        }
      }
      const int most = product.block_rows, blocks = (rows + most - 1) / most;
      GuardedFloats packed(blocks * product.block_floats(in)),
          sums(size_t{1} * blocks * most * kPanel);
      std::fill_n(sums.data(), rows * kPanel, 0.0f);
      for (int b = 0; b < blocks; ++b) {
        product.pack(x.data() + size_t{1} * b * most * in, std::min(most, rows - b * most), in,
                     packed.data() + b * product.block_floats(in));
      }
      product.add({.in_features = in,
                   .count = rows,
                   .panels = 1,
                   .packed = packed.data(),
                   .weights = reinterpret_cast<const std::byte*>(panel.data()),
                   .panel_bytes = panel.size() * sizeof(uint16_t),
                   .sums = sums.data()});
      EXPECT_TRUE(packed.is_intact() && sums.is_intact()) << rows << " x " << in;
      double worst = 0;
      for (int i = 0; i < rows; ++i) {
        for (int o = 0; o < kPanel; ++o) {
          double sum = 0;
          for (int c = 0; c < in; ++c) {
            sum += double{Bf16ToFloat(x[size_t{1} * i * in + c])} *
                   Bf16ToFloat(weight[size_t{1} * o * in + c]);
          }
          const double error = std::abs(sum - sums.data()[i * kPanel + o]) / std::sqrt(in);
          if (!(error <= worst)) worst = error;
        }
      }
      EXPECT_LE(worst, 2e-5) << rows << " x " << in;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelScratch, ::testing::ValuesIn(SupportedCpuLevels()));

}  // namespace
}  // namespace ziggurat::testing

// KIVI's codes, scales, zeros and restored numbers against those of the published code, which keeps
// scale and zero of an f32 cache in f32. The cache's own codes are made from bf16 ones: they are
// checked against that definition, and against the published codes as far as bf16 allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/quantization.h"
#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/report.h"

namespace ziggurat::golden {
namespace {

/// One run: a tensor [heads, tokens, head_dim] and what became of it.
struct KiviRun {
  explicit KiviRun(const Case& golden, const ReferenceRun& reference)
      : run(reference),
        is_keys(reference.manifest.at("params").at("tensor") == "k"),
        bits(reference.manifest.at("params").at("bits").get<int>()),
        group(reference.manifest.at("params").at("group_size").get<int>()),
        x(golden.inputs.at(0).at(is_keys ? "k" : "v")),
        heads(static_cast<int>(x.shape.at(0))),
        tokens(static_cast<int>(x.shape.at(1))),
        head_dim(static_cast<int>(x.shape.at(2))) {}

  size_t At(int head, int token, int channel) const {
    return (static_cast<size_t>(head) * tokens + token) * head_dim + channel;
  }
  /// Of scale [heads, tokens / group, 1, head_dim], or [heads, tokens, head_dim / group, 1].
  size_t GroupAt(int head, int token, int channel) const {
    if (is_keys) {
      return (static_cast<size_t>(head) * (tokens / group) + token / group) * head_dim + channel;
    }
    return (static_cast<size_t>(head) * tokens + token) * (head_dim / group) + channel / group;
  }
  /// A group's numbers, each `stride` behind the one before.
  const float* FirstOfGroup(int head, int token, int channel) const {
    return x.values.data() + (is_keys ? At(head, token - token % group, channel)
                                      : At(head, token, channel - channel % group));
  }
  int stride() const { return is_keys ? head_dim : 1; }
  float Expected(const char* tensor, size_t index) const {
    return run.tensors.at(tensor).values.at(index);
  }

  const ReferenceRun& run;
  const bool is_keys;
  const int bits, group;
  const golden::Tensor& x;
  const int heads, tokens, head_dim;
};

/// Whether a and b are the same f32 or neighbours.
bool WithinOneUlp(float a, float b) { return a == b || std::nextafter(a, b) == b; }

/// The definition of attention/quantization.h.
void CompareDefinition(const KiviRun& r, Report* report) {
  // The published code keeps scale and zero of f32 caches as they are.
  const auto keep = [](float number) { return number; };
  double worst_restored = 0;
  size_t compared = 0;
  int wrong = 0;
  for (int head = 0; head < r.heads; ++head) {
    for (int token = 0; token < r.tokens; ++token) {
      for (int c = 0; c < r.head_dim; ++c) {
        const GroupScale scale =
            GroupScaleOf(r.FirstOfGroup(head, token, c), r.group, r.stride(), r.bits, keep);
        const int code = GroupCode(r.x.values.at(r.At(head, token, c)), scale, r.bits);
        const size_t of_group = r.GroupAt(head, token, c), at = r.At(head, token, c);
        const float restored = scale.scale * static_cast<float>(code) + scale.zero;
        const float expected = r.Expected("dequant", at);
        const double difference = std::abs(double{restored} - expected);
        const double largest = std::abs(scale.zero) + scale.scale * LargestCode(r.bits);
        worst_restored = std::max(worst_restored, difference / std::max(1.0, largest));
        const bool same = scale.zero == r.Expected("zero_mn", of_group) &&
                          WithinOneUlp(scale.scale, r.Expected("scale", of_group)) &&
                          static_cast<float>(code) == r.Expected("codes", at);
        if (!same && ++wrong <= 5) {
          ADD_FAILURE() << r.run.name << " head " << head << " token " << token << " channel " << c
                        << ": scale " << scale.scale << " zero " << scale.zero << " code " << code
                        << " instead of " << r.Expected("scale", of_group) << " "
                        << r.Expected("zero_mn", of_group) << " " << r.Expected("codes", at);
        }
        ++compared;
      }
    }
  }
  EXPECT_EQ(wrong, 0) << r.run.name;
  EXPECT_LE(worst_restored, 1e-5) << r.run.name;
  report->Compared("codes with scales and zeros", compared);
  report->Difference("restored numbers", worst_restored);
}

/// The lowest and the highest code that a number of code `position` = (x - zero) / scale, before
/// rounding, may have once zero and scale are bf16: those are off by at most 2^-8 of themselves, or
/// by the smallest bf16.
std::pair<int, int> CodesWithBf16(double position, double zero, double scale, int bits) {
  if (scale == 0) return {0, 0};
  constexpr double kBf16 = 1.0 / 256, kSmallest = 0x1p-133, kF32Arithmetic = 1e-4;
  const double zero_off = kBf16 * std::abs(zero) / scale + kSmallest / scale;
  const double scale_off = kBf16 + kSmallest / scale;
  if (scale_off >= 1) return {0, LargestCode(bits)};
  const double off = (zero_off + scale_off * std::abs(position)) / (1 - scale_off) + kF32Arithmetic;
  const auto code = [&](double at) {
    return static_cast<int>(std::nearbyint(std::clamp<double>(at, 0, LargestCode(bits))));
  };
  return {code(position - off), code(position + off)};
}

/// Of codes in a cache docs/policies.md says which head sizes and groups they suit.
bool SuitsCache(const KiviRun& r) {
  return r.head_dim % (r.bits == 4 ? 8 : 16) == 0 && r.head_dim % r.group == 0 && r.group >= 2 &&
         r.group <= 256;
}

/// The codes in a backend's cache are those of bf16 scales and zeros, and no further from the
/// published ones than those allow. Values need not be whole groups of tokens; the cache is filled
/// up with zeros, which share no group with another token's values.
void CompareCache(AttentionBackend& backend, const KiviRun& r, Report* report) {
  const CacheFormat format{r.bits == 4 ? Encoding::kInt4 : Encoding::kInt2,
                           static_cast<uint16_t>(r.group)};
  const CacheGeometry geometry{1, r.heads, r.head_dim,
                               CacheGeometry::DefaultBlockBytes(r.heads, r.head_dim)};
  const absl::Status suits = geometry.CheckFormat(format);
  ASSERT_TRUE(suits.ok()) << r.run.name << ": " << suits;
  const AttentionShape shape = Shape(r.heads, r.heads, r.head_dim);
  const int room = RoundUp(r.tokens, r.group);
  // [room, heads, head_dim]
  std::vector<float> rows(static_cast<size_t>(room) * r.heads * r.head_dim);
  for (int head = 0; head < r.heads; ++head) {
    for (int token = 0; token < r.tokens; ++token) {
      for (int c = 0; c < r.head_dim; ++c) {
        rows[(static_cast<size_t>(token) * r.heads + head) * r.head_dim + c] =
            r.x.values[r.At(head, token, c)];
      }
    }
  }
  TestPool pool(geometry.block_bytes, geometry.BlocksFor(format, r.heads, room));
  const SegmentView s = TakeSegment(pool, format, 0, r.heads, r.head_dim, room);
  backend.WriteTokens(shape, {ElementType::kF32, rows.data(), rows.data()},
                      TokenChoice::From(0, room), pool.view(), s, 0);
  const reference::StoredSegment stored(pool.view(), s, r.head_dim);
  const auto side = r.is_keys ? reference::Side::kKeys : reference::Side::kValues;
  int moved = 0, wrong = 0, too_far = 0;
  for (int head = 0; head < r.heads; ++head) {
    for (int token = 0; token < r.tokens; ++token) {
      for (int c = 0; c < r.head_dim; ++c) {
        const int code = static_cast<int>(stored.Code(side, head, token, c));
        const float x = r.x.values[r.At(head, token, c)];
        const GroupScale stored_scale =
            GroupScaleOf(r.FirstOfGroup(head, token, c), r.group, r.stride(), r.bits);
        wrong += code != GroupCode(x, stored_scale, r.bits) ? 1 : 0;
        const size_t of_group = r.GroupAt(head, token, c);
        const double scale = r.Expected("scale", of_group), zero = r.Expected("zero_mn", of_group);
        const auto [lowest, highest] = CodesWithBf16((x - zero) / scale, zero, scale, r.bits);
        too_far += code < lowest || code > highest ? 1 : 0;
        moved += code != static_cast<int>(r.Expected("codes", r.At(head, token, c))) ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(wrong, 0) << r.run.name << " " << backend.name();
  EXPECT_EQ(too_far, 0) << r.run.name << " " << backend.name();
  report->Compared("caches");
  report->Difference("codes of a cache with bf16 scales, as a share of them",
                     moved / static_cast<double>(r.x.values.size()));
}

std::string ReasonToSkip(const ReferenceRun& run) {
  if (run.method() == "kivi_residual") return "runs: our residual rule differs by decision";
  const int bits = run.manifest.at("params").at("bits");
  if (bits != 2 && bits != 4) {
    return "runs: no codes of " + std::to_string(bits) +
           " bits in groups (int8 is symmetric, with a scale for each token)";
  }
  return "";
}

TEST(KiviGolden, CodesAreThoseOfThePublishedCode) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"kivi"});
  Report report;
  for (const Case& golden : cases) {
    for (const ReferenceRun& run : golden.runs) {
      if (!run.method().starts_with("kivi")) continue;
      if (const std::string reason = ReasonToSkip(run); !reason.empty()) {
        report.Skipped(reason);
        continue;
      }
      ASSERT_FALSE(run.tensors.empty()) << run.name << " has no tensors";
      const KiviRun kivi(golden, run);
      ASSERT_EQ((kivi.is_keys ? kivi.tokens : kivi.head_dim) % kivi.group, 0) << run.name;
      report.Expected("runs");
      report.Expected("codes with scales and zeros", kivi.x.values.size());
      CompareDefinition(kivi, &report);
      for (auto& backend : AllBackends()) {
        if (!SuitsCache(kivi)) {
          report.Skipped("caches: the head size does not suit the codes or their groups");
          continue;
        }
        report.Expected("caches");
        CompareCache(*backend, kivi, &report);
      }
      report.Compared("runs");
    }
  }
  report.Print("kivi");
  if (HasCase(cases, "kivi_a")) report.Demand("caches");
  if (!report.has_compared()) GTEST_SKIP() << NothingToCompare("kivi");
}

}  // namespace
}  // namespace ziggurat::golden

// KIVI's codes, scales, zeros and restored numbers against those of the published code, which keeps
// scale and zero of an f32 cache in f32. The cache's own codes are made from bf16 ones: they are
// checked against that definition, and how many are those of the published code is shown.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/quantization.h"
#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"
#include "tests/compression/golden/golden_case.h"

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

/// The definition of attention/quantization.h; returns the numbers compared.
size_t CompareDefinition(const KiviRun& r, double* worst_restored) {
  // The published code keeps scale and zero of f32 caches as they are.
  const auto keep = [](float number) { return number; };
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
        *worst_restored =
            std::max(*worst_restored, difference / std::max(1.0f, std::abs(expected)));
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
  EXPECT_LE(*worst_restored, 1e-5) << r.run.name;
  return compared;
}

/// The share of codes in a backend's cache that are the published ones. None may be off by more
/// than one: bf16 scales move what lies near the border between two codes.
double CompareCache(AttentionBackend& backend, const KiviRun& r) {
  const CacheFormat format{r.bits == 4 ? Encoding::kInt4 : Encoding::kInt2,
                           static_cast<uint16_t>(r.group)};
  const CacheGeometry geometry{1, r.heads, r.head_dim,
                               CacheGeometry::DefaultBlockBytes(r.heads, r.head_dim)};
  if (!geometry.Validate().ok() || !geometry.CheckFormat(format).ok()) return 1;
  const AttentionShape shape = Shape(r.heads, r.heads, r.head_dim);
  std::vector<float> rows(r.x.values.size());  // [tokens, heads, head_dim]
  for (int head = 0; head < r.heads; ++head) {
    for (int token = 0; token < r.tokens; ++token) {
      for (int c = 0; c < r.head_dim; ++c) {
        rows[(static_cast<size_t>(token) * r.heads + head) * r.head_dim + c] =
            r.x.values[r.At(head, token, c)];
      }
    }
  }
  TestPool pool(geometry.block_bytes, geometry.BlocksFor(format, r.heads, r.tokens));
  const SegmentView s = TakeSegment(pool, format, 0, r.heads, r.head_dim, r.tokens);
  backend.WriteTokens(shape, ElementType::kF32, rows.data(), rows.data(), {}, 0, r.tokens,
                      pool.view(), s, 0);
  const reference::StoredSegment stored(pool.view(), s, r.head_dim);
  const auto side = r.is_keys ? reference::Side::kKeys : reference::Side::kValues;
  size_t equal = 0;
  int wrong = 0;
  for (int head = 0; head < r.heads; ++head) {
    for (int token = 0; token < r.tokens; ++token) {
      for (int c = 0; c < r.head_dim; ++c) {
        const int code = static_cast<int>(stored.Code(side, head, token, c));
        const GroupScale scale =
            GroupScaleOf(r.FirstOfGroup(head, token, c), r.group, r.stride(), r.bits);
        wrong += code != GroupCode(r.x.values[r.At(head, token, c)], scale, r.bits) ? 1 : 0;
        equal += code == static_cast<int>(r.Expected("codes", r.At(head, token, c))) ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(wrong, 0) << r.run.name << " " << backend.name();
  return static_cast<double>(equal) / static_cast<double>(rows.size());
}

TEST(KiviGolden, CodesAreThoseOfThePublishedCode) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  int runs = 0, heads = 0, expected_runs = 0;
  size_t numbers = 0;
  double worst_restored = 0, least_equal = 1;
  std::map<std::string, int> skipped;
  for (const Case& golden : LoadCases(*folder, {"kivi"})) {
    for (const ReferenceRun& run : golden.runs) {
      if (run.method() == "kivi_residual") ++skipped["our residual rule differs by decision"];
      if (run.method() != "kivi") continue;
      ++expected_runs;
      ASSERT_FALSE(run.tensors.empty()) << run.name << " has no tensors";
      const KiviRun kivi(golden, run);
      numbers += CompareDefinition(kivi, &worst_restored);
      for (auto& backend : AllBackends()) {
        least_equal = std::min(least_equal, CompareCache(*backend, kivi));
      }
      ++runs;
      heads += kivi.heads;
    }
  }
  std::printf(
      "golden kivi\n  compared %d runs, %d heads, %zu codes with scales and zeros (restored "
      "within %.1e); in caches with bf16 scales %.1f %% of the codes are the same\n",
      runs, heads, numbers, worst_restored, 100 * least_equal);
  for (const auto& [reason, count] : skipped) {
    std::printf("  skipped  %d runs, %s\n", count, reason.c_str());
  }
  EXPECT_EQ(runs, expected_runs);
  EXPECT_GT(runs, 0) << "no vectors of kivi";
  EXPECT_GE(least_equal, 0.5) << "by chance a sixteenth or a quarter would be";
}

}  // namespace
}  // namespace ziggurat::golden

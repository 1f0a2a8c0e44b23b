// MiniCache's directions, norms, restored tensors and retained tokens against those of both
// published codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"
#include "tests/compression/golden/golden_case.h"

namespace ziggurat::golden {
namespace {

using reference::Side;
using reference::StoredSegment;

constexpr double kDirectionTolerance = 3e-5;  // absolute
constexpr double kNormTolerance = 3e-5;       // relative
constexpr double kAngleTolerance = 1e-5;      // absolute, of angle / pi
constexpr double kRestoredTolerance = 3e-5;   // of the largest number of the tensor

struct Tally {
  int runs = 0;
  int heads = 0;           ///< whose directions and restored tensors were compared
  int norm_heads = 0;      ///< whose norms and angles were compared
  int retained_heads = 0;  ///< whose retained tokens were compared
  size_t rows = 0;
  bool operator==(const Tally& other) const {
    return runs == other.runs && heads == other.heads && norm_heads == other.norm_heads &&
           retained_heads == other.retained_heads && rows == other.rows;
  }
};

/// [heads, tokens, head_dim] -> [tokens, heads, head_dim].
std::vector<float> ToTokenMajor(const golden::Tensor& tensor) {
  const int64_t heads = tensor.shape.at(0), tokens = tensor.shape.at(1), dim = tensor.shape.at(2);
  std::vector<float> result;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const auto from = tensor.values.begin() + (head * tokens + token) * dim;
      result.insert(result.end(), from, from + dim);
    }
  }
  return result;
}

bool IsFactory(const ReferenceRun& run) {
  const std::string repo = run.manifest.at("reference").at("repo");
  return repo.find("KVCache-Factory") != std::string::npos;
}

/// What the manifest says that we could compare.
Tally CountExpected(const Case& golden, const ReferenceRun& run) {
  const auto& shape = golden.inputs.at(0).at("k_lo").shape;
  const int heads = static_cast<int>(shape.at(0));
  const size_t edges = golden.manifest.value("edge_rows", nlohmann::json::array()).size();
  const bool on_keys = run.manifest.at("params").at("tensor") == "k";
  size_t retained = 0;
  for (const auto& of_head : run.expected.at("retained")) {
    for (const int row : of_head.get<std::vector<int>>()) {
      const auto edge_rows = golden.manifest.value("edge_rows", std::vector<int>());
      retained += std::count(edge_rows.begin(), edge_rows.end(), row) == 0 ? 1 : 0;
    }
  }
  return {1, heads, IsFactory(run) ? heads : 0, IsFactory(run) && on_keys ? heads : 0,
          heads * (static_cast<size_t>(shape.at(1)) - edges) - retained};
}

class RunComparison {
 public:
  RunComparison(AttentionBackend& backend, const Case& golden, const ReferenceRun& run)
      : backend_(backend),
        run_(run),
        params_(run.manifest.at("params")),
        side_(params_.at("tensor") == "k" ? Side::kKeys : Side::kValues),
        heads_(static_cast<int>(golden.inputs.at(0).at("k_lo").shape.at(0))),
        tokens_(static_cast<int>(golden.inputs.at(0).at("k_lo").shape.at(1))),
        head_dim_(static_cast<int>(golden.inputs.at(0).at("k_lo").shape.at(2))),
        pool_(CacheGeometry::DefaultBlockBytes(heads_, head_dim_),
              static_cast<size_t>(tokens_) + 1),
        lower_view_(TakeSegment(pool_, Merged(CacheFormat::kF32), 0, heads_, head_dim_, tokens_)),
        upper_view_(UpperView(lower_view_)) {
    const auto edges = golden.manifest.value("edge_rows", std::vector<int>());
    edge_rows_.insert(edges.begin(), edges.end());
    for (const char* name : {"k_lo", "v_lo", "k_hi", "v_hi"}) {
      inputs_.push_back(ToTokenMajor(golden.inputs.at(0).at(name)));
    }
    const double t = params_.contains("t") ? params_.at("t").get<double>()
                                           : params_.at("interpolation").get<double>();
    backend_.WriteMerged(Heads(), ElementType::kF32, inputs_[0].data(), inputs_[1].data(),
                         inputs_[2].data(), inputs_[3].data(), {}, tokens_, t, pool_.view(),
                         lower_view_, upper_view_, 0);
  }

  Tally Compare() {
    ++tally_.runs;
    for (int head = 0; head < heads_; ++head) {
      CompareTokens(head);
      ++tally_.heads;
    }
    if (IsFactory(run_)) CompareAngles();
    return tally_;
  }

  double worst_direction() const { return worst_direction_; }
  double worst_restored() const { return worst_restored_; }

 private:
  AttentionShape Heads() const { return Shape(heads_, heads_, head_dim_); }
  std::string Where(int head, int token) const {
    return run_.name + " " + std::string(backend_.name()) + " head " + std::to_string(head) +
           " token " + std::to_string(token);
  }
  float Expected(const std::string& tensor, size_t index) const {
    return run_.tensors.at(tensor).values.at(index);
  }
  double LargestOf(const std::string& tensor) const {
    double largest = 0;
    for (float x : run_.tensors.at(tensor).values) {
      if (std::isfinite(x)) largest = std::max(largest, std::abs(double{x}));
    }
    return largest;
  }

  /// Directions, norms and restored tokens. Retained tokens are in the reference's tensors as they
  /// were, and stay unmerged with us; of degenerate ones each code has its own idea.
  void CompareTokens(int head) {
    const auto retained = run_.expected.at("retained").at(head).get<std::set<int>>();
    const StoredSegment lower(pool_.view(), lower_view_, head_dim_);
    const StoredSegment upper(pool_.view(), upper_view_, head_dim_);
    const std::string direction = IsFactory(run_) ? "direction" : "direction_unnormalised";
    const double largest = std::max(LargestOf("restored_lo"), LargestOf("restored_hi"));
    for (int token = 0; token < tokens_; ++token) {
      if (edge_rows_.contains(token)) continue;
      const size_t row = static_cast<size_t>(head) * tokens_ + token;
      double off_direction = 0, off_restored = 0;
      for (int c = 0; c < head_dim_; ++c) {
        const size_t at = row * head_dim_ + c;
        const auto further = [](double* worst, double ours, double theirs) {
          const double difference = std::abs(ours - theirs);
          if (!(difference <= *worst)) *worst = difference;  // a NaN is the worst
        };
        further(&off_direction, lower.Direction(side_, head, token, c), Expected(direction, at));
        if (retained.contains(token)) continue;
        further(&off_restored, lower.Decoded(side_, head, token, c), Expected("restored_lo", at));
        further(&off_restored, upper.Decoded(side_, head, token, c), Expected("restored_hi", at));
      }
      EXPECT_LE(off_direction, kDirectionTolerance) << Where(head, token);
      EXPECT_LE(off_restored, kRestoredTolerance * largest) << Where(head, token);
      worst_direction_ = std::max(worst_direction_, off_direction);
      worst_restored_ = std::max(worst_restored_, off_restored / largest);
      if (!retained.contains(token)) ++tally_.rows;
      if (!IsFactory(run_)) continue;
      EXPECT_NEAR(lower.Norm(side_, head, token) / Expected("magnitude_lo", row), 1, kNormTolerance)
          << Where(head, token);
      EXPECT_NEAR(upper.Norm(side_, head, token) / Expected("magnitude_hi", row), 1, kNormTolerance)
          << Where(head, token);
    }
    if (IsFactory(run_)) ++tally_.norm_heads;
  }

  /// Angles, and on K the tokens that stay unmerged: the ceil(ratio * tokens) of largest angle.
  /// Factory keeps the cosine within 1 - 1e-6 of 0, so its angles of parallel tokens are 1.4e-3;
  /// those are among the degenerate ones.
  void CompareAngles() {
    const size_t first = side_ == Side::kKeys ? 0 : 1;
    std::vector<float> angles(static_cast<size_t>(heads_) * tokens_);
    backend_.MergeAngles(Heads(), ElementType::kF32, inputs_[first].data(),
                         inputs_[first + 2].data(), tokens_, angles.data());
    for (int head = 0; head < heads_; ++head) {
      for (int token = 0; token < tokens_; ++token) {
        if (edge_rows_.contains(token)) continue;
        const size_t row = static_cast<size_t>(head) * tokens_ + token;
        EXPECT_NEAR(angles[row] / 3.14159265358979, Expected("angular_distance", row),
                    kAngleTolerance)
            << Where(head, token);
      }
    }
    if (side_ != Side::kKeys) return;
    const double ratio = params_.at("retention_ratio").get<double>();
    const int retained = static_cast<int>(std::ceil(ratio * tokens_));
    std::vector<int32_t> indices(static_cast<size_t>(heads_) * retained);
    backend_.SelectBest(angles.data(), tokens_, heads_, tokens_, retained, indices.data());
    for (int head = 0; head < heads_; ++head) {
      const std::vector<int32_t> ours(indices.begin() + ptrdiff_t{head} * retained,
                                      indices.begin() + ptrdiff_t{head + 1} * retained);
      EXPECT_EQ(ours, run_.expected.at("retained").at(head).get<std::vector<int32_t>>())
          << Where(head, -1);
      ++tally_.retained_heads;
    }
  }

  AttentionBackend& backend_;
  const ReferenceRun& run_;
  const nlohmann::json& params_;
  const Side side_;
  const int heads_, tokens_, head_dim_;
  TestPool pool_;
  SegmentView lower_view_, upper_view_;
  std::vector<std::vector<float>> inputs_;  ///< K and V of the lower layer, of the upper layer
  std::set<int> edge_rows_;
  Tally tally_;
  double worst_direction_ = 0, worst_restored_ = 0;
};

void CompareAll(AttentionBackend& backend) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  Tally compared, expected;
  std::map<std::string, int> skipped;
  double worst_direction = 0, worst_restored = 0;
  const auto add = [](const Tally& from, Tally* to) {
    to->runs += from.runs;
    to->heads += from.heads;
    to->norm_heads += from.norm_heads;
    to->retained_heads += from.retained_heads;
    to->rows += from.rows;
  };
  for (const Case& golden : LoadCases(*folder, {"minicache"})) {
    for (const ReferenceRun& run : golden.runs) {
      if (run.method() != "minicache") continue;
      ASSERT_FALSE(run.tensors.empty()) << run.name << " has no tensors";
      add(CountExpected(golden, run), &expected);
      RunComparison comparison(backend, golden, run);
      add(comparison.Compare(), &compared);
      worst_direction = std::max(worst_direction, comparison.worst_direction());
      worst_restored = std::max(worst_restored, comparison.worst_restored());
      const size_t heads = run.expected.at("retained").size();
      if (!IsFactory(run)) {
        skipped
            ["retained tokens: that code keeps the smallest |cos|, which merges antiparallel "
             "ones"] += static_cast<int>(heads);
      } else if (run.manifest.at("params").at("tensor") != "k") {
        skipped["retained tokens of V: ours are those of K, for K and V alike"] +=
            static_cast<int>(heads);
      }
      if (golden.manifest.contains("edge_rows")) {
        skipped["degenerate rows (parallel, antiparallel, zero): each code has its own rule"] +=
            static_cast<int>(golden.manifest.at("edge_rows").size() * heads);
      }
    }
  }
  std::printf(
      "golden minicache, backend %s\n  compared %d runs: %d heads' directions (within %.1e) "
      "and %zu restored tokens (within %.1e), %d heads' norms and angles, %d heads' retained "
      "tokens\n",
      std::string(backend.name()).c_str(), compared.runs, compared.heads, worst_direction,
      compared.rows, worst_restored, compared.norm_heads, compared.retained_heads);
  for (const auto& [reason, count] : skipped) {
    std::printf("  skipped  %d heads or rows, %s\n", count, reason.c_str());
  }
  EXPECT_TRUE(compared == expected) << "fewer were compared than the vectors hold";
  EXPECT_GT(compared.runs, 0) << "no vectors of minicache";
  EXPECT_GT(compared.retained_heads, 0) << "no retained tokens on K";
}

TEST(MiniCacheGolden, ReferenceBackendMergesAsThePublishedCodeDoes) {
  CompareAll(*MakeReferenceBackend());
}

TEST(MiniCacheGolden, CpuBackendsMergeAsThePublishedCodeDoes) {
  for (CpuLevel level : SupportedCpuLevels()) CompareAll(**MakeCpuBackend(level, 2));
}

}  // namespace
}  // namespace ziggurat::golden

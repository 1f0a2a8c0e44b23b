// MiniCache's directions, norms, restored tensors and retained tokens against those of both
// published codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attention/reference/stored_segment.h"
#include "tests/attention/test_cache.h"
#include "tests/compression/golden/golden_case.h"
#include "tests/compression/golden/report.h"

namespace ziggurat::golden {
namespace {

using reference::Side;
using reference::StoredSegment;

constexpr double kDirectionTolerance = 3e-5;  // absolute
constexpr double kNormTolerance = 3e-5;       // relative
constexpr double kAngleTolerance = 1e-5;      // absolute, of angle / pi
constexpr double kRestoredTolerance = 3e-5;   // of the largest number of the tensor

// Factory keeps cosines 1e-6 (in f32) away from 1 and -1: near 0 and pi an angle is as exact as its
// cosine.
constexpr double kCosineTolerance = 1.2e-6;
constexpr double kPi = 3.14159265358979;

/// Angles divided by pi.
bool IsSameAngle(double ours, double theirs) {
  return std::abs(ours - theirs) <= kAngleTolerance ||
         std::abs(std::cos(kPi * ours) - std::cos(kPi * theirs)) <= kCosineTolerance;
}

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

/// What the manifest says that we could compare, and what not.
void CountExpected(const Case& golden, const ReferenceRun& run, Report* report) {
  const auto& shape = golden.inputs.at(0).at("k_lo").shape;
  const size_t heads = shape.at(0), tokens = shape.at(1);
  const auto edge_rows = golden.manifest.value("edge_rows", std::set<int>());
  size_t retained = 0;
  for (const auto& of_head : run.expected.at("retained")) {
    for (const int row : of_head.get<std::vector<int>>()) retained += 1 - edge_rows.count(row);
  }
  report->Expected("runs");
  report->Expected("heads' directions", heads);
  report->Expected("restored tokens", heads * (tokens - edge_rows.size()) - retained);
  report->Skipped("rows of heads: parallel, antiparallel or zero, where each code has its own rule",
                  heads * edge_rows.size());
  if (!IsFactory(run)) {
    report->Skipped(
        "heads' retained tokens: that code keeps the smallest |cos|, which merges antiparallel "
        "ones",
        heads);
    return;
  }
  report->Expected("heads' norms and angles", heads);
  if (run.manifest.at("params").at("tensor") == "k") {
    report->Expected("heads' retained tokens", heads);
  } else {
    report->Skipped("heads' retained tokens of V: ours are those of K, for K and V alike", heads);
  }
}

class RunComparison {
 public:
  RunComparison(AttentionBackend& backend, const Case& golden, const ReferenceRun& run,
                Report* report)
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
        upper_view_(UpperView(lower_view_)),
        edge_rows_(golden.manifest.value("edge_rows", std::set<int>())),
        report_(report) {
    for (const char* name : {"k_lo", "v_lo", "k_hi", "v_hi"}) {
      inputs_.push_back(ToTokenMajor(golden.inputs.at(0).at(name)));
    }
    const double t = params_.contains("t") ? params_.at("t").get<double>()
                                           : params_.at("interpolation").get<double>();
    backend_.WriteMerged(Heads(), {ElementType::kF32, inputs_[0].data(), inputs_[1].data()},
                         {ElementType::kF32, inputs_[2].data(), inputs_[3].data()},
                         TokenChoice::From(0, tokens_), t, pool_.view(), lower_view_, upper_view_,
                         0);
  }

  void Compare() {
    for (int head = 0; head < heads_; ++head) CompareTokens(head);
    if (IsFactory(run_)) CompareAngles();
    report_->Compared("runs");
  }

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
      report_->Difference("directions", off_direction);
      report_->Difference("restored tokens", off_restored / largest);
      if (!retained.contains(token)) report_->Compared("restored tokens");
      if (!IsFactory(run_)) continue;
      for (const auto& [stored, name] :
           {std::pair(&lower, "magnitude_lo"), std::pair(&upper, "magnitude_hi")}) {
        const double norm = Expected(name, row);
        EXPECT_NEAR(stored->Norm(side_, head, token), norm, kNormTolerance * norm)
            << Where(head, token);
      }
    }
    report_->Compared("heads' directions");
  }

  /// Angles, and on K the tokens that stay unmerged: the ceil(ratio * tokens) of largest angle.
  void CompareAngles() {
    const size_t first = side_ == Side::kKeys ? 0 : 1;
    std::vector<float> angles(static_cast<size_t>(heads_) * tokens_);
    backend_.MergeAngles(Heads(), ElementType::kF32, inputs_[first].data(),
                         inputs_[first + 2].data(), tokens_, angles.data());
    for (int head = 0; head < heads_; ++head) {
      for (int token = 0; token < tokens_; ++token) {
        if (edge_rows_.contains(token)) continue;
        const size_t row = static_cast<size_t>(head) * tokens_ + token;
        const double ours = angles[row] / kPi, theirs = Expected("angular_distance", row);
        EXPECT_TRUE(IsSameAngle(ours, theirs))
            << Where(head, token) << ": " << ours << " instead of " << theirs;
      }
      report_->Compared("heads' norms and angles");
    }
    if (side_ != Side::kKeys) return;
    const double ratio = params_.at("retention_ratio").get<double>();
    const int retained = static_cast<int>(std::ceil(ratio * tokens_));
    std::vector<int32_t> indices(static_cast<size_t>(heads_) * retained);
    backend_.SelectBest(angles.data(), tokens_, heads_, tokens_, retained, indices.data());
    for (int head = 0; head < heads_; ++head) {
      const auto begin = indices.begin() + ptrdiff_t{head} * retained;
      CompareRetained(head, std::set<int>(begin, begin + retained));
    }
  }

  /// The definition, divided by pi; with a zero vector 0.
  double AngleOfKeys(int head, int token) const {
    double dot = 0, lower = 0, upper = 0;
    for (int c = 0; c < head_dim_; ++c) {
      const size_t at = (static_cast<size_t>(token) * heads_ + head) * head_dim_ + c;
      const double x = inputs_[0][at], y = inputs_[2][at];
      dot += x * y;
      lower += x * x;
      upper += y * y;
    }
    if (lower == 0 || upper == 0) return 0;
    return std::acos(std::clamp(dot / std::sqrt(lower) / std::sqrt(upper), -1.0, 1.0)) / kPi;
  }

  /// The tokens of largest angle. The reference keeps the same but for degenerate ones: parallel
  /// ones have the same angle there, and so have antiparallel ones, so which of them stand before
  /// the cut is arbitrary; and a zero vector is at pi / 2 from any other, here at 0.
  void CompareRetained(int head, const std::set<int>& ours) {
    const auto theirs = run_.expected.at("retained").at(head).get<std::set<int>>();
    EXPECT_EQ(ours.size(), theirs.size()) << Where(head, -1);
    for (int token : theirs) {
      EXPECT_TRUE(ours.contains(token) || edge_rows_.contains(token))
          << Where(head, token) << " is not among " << testing::PrintToString(ours);
    }
    double smallest_kept = 1, largest_left = 0;
    for (int token = 0; token < tokens_; ++token) {
      const double angle = AngleOfKeys(head, token);
      if (ours.contains(token)) {
        smallest_kept = std::min(smallest_kept, angle);
      } else {
        largest_left = std::max(largest_left, angle);
      }
    }
    EXPECT_TRUE(smallest_kept >= largest_left || IsSameAngle(smallest_kept, largest_left))
        << Where(head, -1) << ": leaves " << largest_left << " and keeps " << smallest_kept;
    report_->Compared("heads' retained tokens");
  }

  AttentionBackend& backend_;
  const ReferenceRun& run_;
  const nlohmann::json& params_;
  const Side side_;
  const int heads_, tokens_, head_dim_;
  TestPool pool_;
  SegmentView lower_view_, upper_view_;
  std::vector<std::vector<float>> inputs_;  ///< K and V of the lower layer, of the upper layer
  const std::set<int> edge_rows_;
  Report* report_;
};

/// Whether there was anything to compare.
bool CompareAll(AttentionBackend& backend, const std::vector<Case>& cases) {
  Report report;
  for (const Case& golden : cases) {
    for (const ReferenceRun& run : golden.runs) {
      if (run.method() != "minicache") continue;
      CountExpected(golden, run, &report);
      if (run.tensors.empty()) {
        ADD_FAILURE() << run.name << " has no tensors";
        continue;
      }
      RunComparison(backend, golden, run, &report).Compare();
    }
  }
  report.Print("minicache, backend " + std::string(backend.name()));
  if (HasCase(cases, "minicache_a")) report.Demand("heads' retained tokens");
  return report.has_compared();
}

TEST(MiniCacheGolden, ReferenceBackendMergesAsThePublishedCodeDoes) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  if (!CompareAll(*MakeReferenceBackend(), LoadCases(*folder, {"minicache"}))) {
    GTEST_SKIP() << NothingToCompare("minicache");
  }
}

TEST(MiniCacheGolden, CpuBackendsMergeAsThePublishedCodeDoes) {
  const auto folder = FindGoldens();
  if (!folder.has_value()) GTEST_SKIP() << MissingGoldens();
  const std::vector<Case> cases = LoadCases(*folder, {"minicache"});
  bool has_compared = false;
  for (CpuLevel level : SupportedCpuLevels()) {
    has_compared = CompareAll(**MakeCpuBackend(level, 2), cases);
  }
  if (!has_compared) GTEST_SKIP() << NothingToCompare("minicache");
}

}  // namespace
}  // namespace ziggurat::golden

// What is forecast of a request is what an engine then holds and reserves for it.
#include "scheduler/forecast.h"

#include <cmath>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/scheduler/engine_harness.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

constexpr int kPrompt = 203;
constexpr int kNew = 90;

CacheGeometry GeometryOf(const ModelShape& shape) {
  return {shape.num_layers, shape.num_kv_heads, shape.head_dim,
          CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim)};
}

RequestForecast MustForecast(const std::string& policy, ForecastOptions options) {
  const ModelShape shape = StubModelOptions().shape;
  auto forecast = ForecastRequest(*MustParse(policy), shape, GeometryOf(shape), options);
  EXPECT_TRUE(forecast.ok()) << policy << ": " << forecast.status();
  return forecast.ok() ? *forecast : RequestForecast();
}

/// Waits until `condition`, `what` in words, holds of a snapshot; the last one seen.
template <typename Condition>
EngineSnapshot AwaitSnapshot(const Engine& engine, const std::string& what, Condition condition) {
  EngineSnapshot snapshot;
  const bool is_seen = PollUntil(kPatience, [&] {
    snapshot = *engine.Snapshot();
    return condition(snapshot);
  });
  EXPECT_TRUE(is_seen) << "waited for " << what << ", and " << snapshot.running << " run and "
                       << snapshot.waiting << " wait";
  return snapshot;
}

bool AllDecode(const EngineSnapshot& snapshot) {
  return std::all_of(snapshot.requests.begin(), snapshot.requests.end(), [](const auto& request) {
    return request.state == RequestState::kWaiting ||
           (request.state == RequestState::kDecoding && request.generated_tokens >= 2);
  });
}

class ForecastTest : public ::testing::TestWithParam<std::string> {};

// The stub finds every other one of the tested layers lazy, which is as many as their lower half.
TEST_P(ForecastTest, IsWhatTheEngineHoldsAndReserves) {
  const ForecastOptions options{.prompt_tokens = kPrompt,
                                .max_new_tokens = kNew,
                                .generated_tokens = kNew,
                                .lazy_share = 0.5};
  const RequestForecast forecast = MustForecast(GetParam(), options);
  EXPECT_LE(forecast.settled_blocks, forecast.admitted_blocks);
  EXPECT_LE(forecast.last_blocks, forecast.settled_blocks);

  const size_t block_bytes = GeometryOf(StubModelOptions().shape).block_bytes;
  constexpr int kRequests = 13;  // the last of which is admitted with all that its plan asks for
  const size_t pool = (kRequests - 1) * forecast.settled_blocks + forecast.admitted_blocks;
  EngineHarness harness({.kv_cache_bytes = pool * block_bytes});
  harness.control->decode_delay_us = 20'000;
  std::vector<RequestId> ids;
  ids.reserve(kRequests + 5);
  for (int i = 0; i < kRequests + 5; ++i) {
    ids.push_back(harness.MustSubmit(harness.Request(kPrompt, kNew, GetParam())));
  }
  // What a layer keeps may depend on what is in the text, and the forecast is then one of its ways.
  const int slack = forecast.depends_on_content ? 2 : 0;
  const EngineSnapshot full = AwaitSnapshot(
      *harness.engine, absl::StrCat(kRequests - slack, " that run, and all of them decode"),
      [&](const EngineSnapshot& snapshot) {
        return snapshot.running >= kRequests - slack && AllDecode(snapshot);
      });
  EXPECT_NEAR(full.running, kRequests, slack);
  for (const RequestSnapshot& request : full.requests) {
    if (request.state == RequestState::kWaiting) continue;
    EXPECT_NEAR(static_cast<double>(request.blocks + request.reserved_blocks),
                static_cast<double>(forecast.settled_blocks), 8.0 * slack)
        << GetParam();
  }
  harness.control->decode_delay_us = 0;
  for (const RequestId id : ids) {
    const CacheReport report = harness.Await(id).last.cache;
    EXPECT_NEAR(static_cast<double>(report.blocks), static_cast<double>(forecast.last_blocks),
                8.0 * slack)
        << GetParam();
  }
}

INSTANTIATE_TEST_SUITE_P(AllMethods, ForecastTest, ::testing::ValuesIn(PoliciesOfAllMethods()));

TEST(ForecastTest, LazyLayersGiveBack) {
  ForecastOptions options{.prompt_tokens = 1000, .max_new_tokens = 50};
  const std::string policy = "simlayerkv(threshold=0.5,sinks=2,recent=30)";
  const RequestForecast none = MustForecast(policy, options);
  options.lazy_share = 1;
  const RequestForecast all = MustForecast(policy, options);
  EXPECT_EQ(none.admitted_blocks, all.admitted_blocks);
  EXPECT_EQ(none.settled_blocks, none.admitted_blocks);
  EXPECT_LT(all.settled_blocks * 10, none.settled_blocks);
  EXPECT_TRUE(all.depends_on_content);
  EXPECT_FALSE(MustForecast("snapkv(budget=64)", options).depends_on_content);
  EXPECT_FALSE(MustForecast("minicache(start=0)", options).depends_on_content);
  EXPECT_TRUE(MustForecast("minicache(start=0,retain_by=threshold)", options).depends_on_content);
}

TEST(ForecastTest, WhichOfTheSelectedTokensAreDistantDependsOnTheTextButTheLastAreNear) {
  const auto forecast = [](int recent) {
    return MustForecast(
        absl::StrCat("pod(groups=pairs,sinks=2,recent=", recent, ")+snapkv(budget=400,window=200)"),
        {.prompt_tokens = 1000, .max_new_tokens = 1});
  };
  EXPECT_TRUE(forecast(20).depends_on_content);
  EXPECT_LT(forecast(20).settled_blocks, forecast(100).settled_blocks);
  EXPECT_LT(forecast(100).settled_blocks, forecast(200).settled_blocks);
  EXPECT_EQ(forecast(200).settled_blocks, forecast(300).settled_blocks);
  EXPECT_FALSE(MustForecast("pod(groups=pairs,sinks=2,recent=20)", {.prompt_tokens = 1000})
                   .depends_on_content);
}

TEST(ForecastTest, APolicyThatDoesNotSuitTheModelIsRefused) {
  const ModelShape shape = StubModelOptions().shape;
  const auto forecast =
      ForecastRequest(*MustParse("kivi(group=3)"), shape, GeometryOf(shape), {.prompt_tokens = 9});
  EXPECT_TRUE(absl::IsInvalidArgument(forecast.status())) << forecast.status();
  // Norms of eight heads are 128 bytes a token, keys and values of size 6 fill blocks of 192.
  ModelShape odd = shape;
  odd.num_q_heads = odd.num_kv_heads = 8;
  odd.head_dim = 6;
  const CacheGeometry geometry = {odd.num_layers, 8, 6, 192};
  EXPECT_EQ(ForecastRequest(*MustParse("full"), odd, geometry, {.prompt_tokens = 9}).status(),
            absl::OkStatus());
  const auto merged =
      ForecastRequest(*MustParse("minicache(start=0)"), odd, geometry, {.prompt_tokens = 9});
  EXPECT_TRUE(absl::IsInvalidArgument(merged.status())) << merged.status();
}

/// A policy that is told of random importance where it decides late.
class RandomlyMeasured final : public Policy {
 public:
  RandomlyMeasured(const std::string& text, std::mt19937_64* random)
      : policy_(MustParse(text)), random_(*random) {}
  std::string ToString() const override { return policy_->ToString(); }
  std::string_view name() const override { return policy_->name(); }
  absl::Status Check(const PolicyContext& context) const override {
    return policy_->Check(context);
  }
  CachePlan Plan(const PolicyContext& context, const SequenceLimits& limits) const override {
    return policy_->Plan(context, limits);
  }
  std::vector<LayerPlan> Decide(const PolicyContext& context, const SequenceLimits& limits,
                                absl::Span<const double> importance) const override {
    // From layers that are nearly alike to one that stands out.
    const double power = std::pow(2, std::uniform_int_distribution(-2, 6)(random_));
    std::vector<double> measured(importance.size());
    for (double& value : measured) {
      value = std::pow(std::uniform_real_distribution()(random_), power);
    }
    return policy_->Decide(context, limits, measured);
  }

 private:
  const std::shared_ptr<const Policy> policy_;
  std::mt19937_64& random_;
};

// The pool has as many blocks as the plan says, so that a block too few ends the forecast.
TEST(ForecastTest, WhateverALateDecisionComesToIsInItsPlan) {
  std::mt19937_64 random(11);
  const auto any = [&](int from, int to) {
    return std::uniform_int_distribution(from, to)(random);
  };
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + any(0, static_cast<int>(values.size()) - 1));
  };
  for (int i = 0; i < 3000; ++i) {
    ModelShape shape = StubModelOptions().shape;
    shape.num_layers = any(1, 40);
    shape.num_kv_heads = any(1, 8);
    shape.num_q_heads = shape.num_kv_heads * any(1, 3);
    shape.head_dim = one_of({16, 32, 48, 80, 128});
    shape.element = any(0, 1) == 0 ? ElementType::kF32 : ElementType::kBf16;
    const int prompt = one_of({1, 2, 15, 16, 17, 40, 150, 600, 1000});
    const int new_tokens = one_of({1, 2, 3, 30, 300, 900});
    bool is_plain = false;
    std::string policy;
    switch (any(0, 2)) {
      case 0:
        policy = any(0, 1) == 0
                     ? absl::StrCat("squeeze(budget=", any(10, 400), ",p=0.", any(5, 9), ")")
                     : absl::StrCat("squeeze(budget=", any(100, 1500), ",p=0.0", any(5, 9), ")");
        break;
      case 1:
        policy = absl::StrCat("pyramidkv(budget=", any(9, 300),
                              ",window=8,shape=", any(0, 1) == 0 ? "gini" : "entropy", ")");
        break;
      default:
        policy = absl::StrCat("simlayerkv(threshold=0.", any(0, 9), ",sinks=", any(0, prompt),
                              ",recent=", any(1, 200), ",decide=decode)");
    }
    switch (any(0, 3)) {
      case 0:
        absl::StrAppend(&policy, any(0, 1) == 0 ? "+int8" : "+fp8");
        break;
      case 1:
        absl::StrAppend(&policy, "+kivi(bits=", one_of({2, 4}), ",group=", one_of({2, 4, 8, 16}),
                        ",residual=", one_of({0, 1, 16, 40, 128}), ")");
        break;
      default:
        is_plain = true;
    }
    const ForecastOptions options{
        .prompt_tokens = prompt, .max_new_tokens = new_tokens, .generated_tokens = new_tokens};
    SCOPED_TRACE(absl::StrCat(policy, ", ", shape.num_layers, " layers, ", shape.num_kv_heads,
                              " heads of ", shape.head_dim, ", ", options.prompt_tokens, " + ",
                              new_tokens, " tokens"));
    const auto forecast =
        ForecastRequest(RandomlyMeasured(policy, &random), shape, GeometryOf(shape), options);
    ASSERT_TRUE(forecast.ok()) << forecast.status();
    EXPECT_LE(forecast->settled_blocks, forecast->admitted_blocks);
    EXPECT_LE(forecast->last_blocks, forecast->settled_blocks);
    if (!is_plain) continue;
    const auto full = ForecastRequest(*MustParse("full"), shape, GeometryOf(shape), options);
    EXPECT_LE(forecast->admitted_blocks, full->admitted_blocks);
  }
}

}  // namespace
}  // namespace ziggurat

#include "scheduler/engine.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compression/registry.h"
#include "gmock/gmock.h"
#include "scheduler/refusal.h"
#include "scheduler/sequence.h"
#include "tests/scheduler/engine_harness.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

TEST(EngineTest, ARequestGivesTheModelsGreedyTokensAndFreesItsBlocks) {
  EngineHarness harness(Options(400));
  const EngineRequest request = harness.Request(100, 20);
  const Collected result = harness.Await(harness.MustSubmit(request));
  EXPECT_EQ(result.tokens, harness.Expected(request));
  EXPECT_EQ(result.last.reason, FinishReason::kLength);
  EXPECT_EQ(result.last.usage.prompt_tokens, 100);
  EXPECT_EQ(result.last.usage.completion_tokens, 20);
  harness.ExpectEmptyPool();
}

TEST(EngineTest, AOneTokenPromptAndAOneTokenAnswerWork) {
  EngineHarness harness(Options(8));
  const EngineRequest request = harness.Request(1, 1);
  EXPECT_EQ(harness.Await(harness.MustSubmit(request)).tokens, harness.Expected(request));
  harness.ExpectEmptyPool();
}

TEST(EngineTest, ManyRequestsAtOnceGiveWhatEachGivesAlone) {
  EngineHarness harness(Options(6000));
  std::vector<std::pair<RequestId, std::vector<int32_t>>> expected;
  const std::vector<std::string> policies = PoliciesOfAllMethods();
  for (size_t i = 0; i < 4 * policies.size(); ++i) {
    const int n = static_cast<int>(i);
    const EngineRequest request =
        harness.Request(1 + (n * 37) % 300, 1 + n % 40, policies[i % policies.size()]);
    expected.emplace_back(harness.MustSubmit(request), harness.Expected(request));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(policies[i % policies.size()]);
    const Collected result = harness.Await(expected[i].first);
    EXPECT_EQ(result.tokens, expected[i].second);
    EXPECT_TRUE(result.last.status.ok()) << result.last.status;
  }
  EXPECT_GT(harness.control->largest_batch, 8);
  harness.ExpectEmptyPool();
}

TEST(EngineTest, EveryPolicyIsAmongTheMethodsThatTheseTestsRun) {
  for (const PolicyDescriptor* policy : AllPolicies()) {
    const bool is_there = absl::c_any_of(PoliciesOfAllMethods(), [&](const std::string& text) {
      const std::vector<std::string> terms = absl::StrSplit(text, '+');
      return absl::c_any_of(terms, [&](const std::string& term) {
        return term.substr(0, term.find('(')) == policy->name;
      });
    });
    EXPECT_TRUE(is_there) << "PoliciesOfAllMethods (tests/support/policies.h) has no text with "
                          << policy->name;
  }
}

TEST(EngineTest, EveryMethodHoldsNoMoreThanItsPlanAtEveryLength) {
  EngineHarness harness(Options(20000));
  const ModelShape shape = StubModelOptions().shape;
  const CacheGeometry geometry{kLayers, 2, 8, kBlockBytes};
  for (const std::string& policy : PoliciesOfAllMethods()) {
    SCOPED_TRACE(policy);
    for (const int prompt : {1, 9, 31, 64, 201}) {
      for (const int generated : {1, 2, 3, 7, 33, 90}) {
        const EngineRequest request = harness.Request(prompt, generated, policy);
        const auto plan = PlanBlocks(*request.policy, shape, geometry, {prompt, generated});
        ASSERT_TRUE(plan.ok()) << plan.status();
        const Collected result = harness.Await(harness.MustSubmit(request));
        ASSERT_TRUE(result.last.status.ok())
            << prompt << " + " << generated << ": " << result.last.status;
        EXPECT_EQ(result.tokens, harness.Expected(request)) << prompt << " + " << generated;
        const CacheReport& report = result.last.cache;
        ASSERT_EQ(report.layers.size(), static_cast<size_t>(kLayers));
        size_t blocks = 0;
        for (int l = 0; l < kLayers; ++l) {
          EXPECT_LE(report.layers[l].blocks, plan->layer_blocks[l]) << "layer " << l;
          blocks += report.layers[l].blocks;
        }
        EXPECT_EQ(report.blocks, blocks);
      }
    }
  }
  harness.ExpectEmptyPool();
}

TEST(EngineTest, APoolOfThePlansBlocksIsEnough) {
  // Not one block more than the bound: a bound that is too low ends the request.
  const ModelShape shape = StubModelOptions().shape;
  const CacheGeometry geometry{kLayers, 2, 8, kBlockBytes};
  for (const std::string& policy : PoliciesOfAllMethods()) {
    SCOPED_TRACE(policy);
    const auto plan = PlanBlocks(*MustParse(policy), shape, geometry, {150, 60});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EngineHarness harness(Options(plan->total_blocks));
    const EngineRequest request = harness.Request(150, 60, policy);
    const Collected result = harness.Await(harness.MustSubmit(request));
    EXPECT_TRUE(result.last.status.ok()) << result.last.status;
    EXPECT_EQ(result.tokens, harness.Expected(request));
  }
}

TEST(EngineTest, CancellingFreesEveryMethodsBlocksInTheMiddle) {
  EngineHarness harness(Options(6000));
  harness.control->decode_delay_us = 200;
  std::vector<RequestId> ids;
  for (const std::string& policy : PoliciesOfAllMethods()) {
    ids.push_back(harness.MustSubmit(harness.Request(120, 2000, policy)));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    harness.AwaitTokens(ids[i], 1 + (i * 7) % 40);
    harness.engine->Cancel(ids[i], FinishReason::kCancelled);
    EXPECT_EQ(harness.Await(ids[i]).last.reason, FinishReason::kCancelled)
        << PoliciesOfAllMethods()[i];
  }
  harness.ExpectEmptyPool();
}

TEST(EngineTest, APyramidHoldsItsBudgetsRoundedUpToBlocksLayerByLayer) {
  EngineHarness harness(Options(1000));
  const EngineRequest request = harness.Request(500, 10, "pyramidkv(budget=100,window=8,beta=4)");
  const CachePlan plan = request.policy->Plan({kLayers, 4, 2, 8}, {500, 10});
  const Collected result = harness.Await(harness.MustSubmit(request));
  ASSERT_EQ(result.last.cache.layers.size(), static_cast<size_t>(kLayers));
  size_t sum = 0;
  for (int l = 0; l < kLayers; ++l) {
    const LayerCacheReport& layer = result.last.cache.layers[l];
    const size_t tokens = plan.layers[l].prompt_tokens_kept + 9;  // the last token is not cached
    EXPECT_EQ(layer.budget_tokens, plan.layers[l].prompt_tokens_kept) << "layer " << l;
    EXPECT_EQ(layer.tokens, tokens) << "layer " << l;
    EXPECT_EQ(layer.blocks, (tokens + 15) / 16) << "layer " << l;
    sum += layer.blocks;
  }
  EXPECT_GT(result.last.cache.layers[0].blocks, result.last.cache.layers[kLayers - 1].blocks);
  EXPECT_EQ(result.last.cache.blocks, sum);
  EXPECT_EQ(result.last.cache.full_blocks, kLayers * ((509u + 15) / 16));
}

TEST(EngineTest, ReportsCountWhatIsKeptOfThePromptAndMeansOfHeads) {
  EngineHarness harness(Options(400));
  const std::string lazy = "simlayerkv(threshold=0.5,sinks=2,recent=30,decide=decode)";
  Collected result = harness.Await(harness.MustSubmit(harness.Request(100, 20, lazy)));
  for (const LayerCacheReport& layer : result.last.cache.layers) {
    EXPECT_EQ(layer.budget_tokens, layer.lazy ? 31u : 100u)
        << "the first token is not the prompt's";
  }
  const std::string pod = "pod(groups=head,sinks=2,recent=20)";
  result = harness.Await(harness.MustSubmit(harness.Request(101, 1, pod)));
  // One of two heads reads the keys of 79 tokens in the layer below.
  EXPECT_EQ(result.last.cache.layers[0].distant_tokens, 0u);
  EXPECT_EQ(result.last.cache.layers[1].distant_tokens, 40u);
}

TEST(EngineTest, ALayerIsReportedUnderTheFormatThatHoldsMostBlocks) {
  EngineHarness harness(Options(400));
  const auto layers_of = [&](int prompt, const char* policy) {
    const RequestId id = harness.MustSubmit(harness.Request(prompt, 1, policy));
    return harness.Await(id).last.cache.layers;
  };
  const char* const kivi = "kivi(bits=4,group=8,residual=24)";
  // Codes and their scales take a block each, bf16 one for 16 tokens.
  const LayerCacheReport alike = layers_of(32, kivi)[0];
  ASSERT_EQ(alike.formats.size(), 2u);
  EXPECT_EQ(alike.formats[0].blocks, 2u);
  EXPECT_EQ(alike.formats[1].blocks, 2u);
  EXPECT_EQ(alike.format, CacheFormat::kBf16) << "of two alike the first";
  EXPECT_EQ(layers_of(400, kivi)[0].format.encoding, Encoding::kInt4);
  // A layer that reads the blocks of the one below is named by them, too.
  for (const LayerCacheReport& layer : layers_of(200, "minicache(start=0,retain=0.1,tail=6)")) {
    EXPECT_TRUE(layer.format.merged);
  }
  // Many near tokens, a group of codes and, of the distant ones, codes of values.
  const LayerCacheReport three =
      layers_of(700, "pod(groups=pairs,sinks=2,recent=210)+kivi(bits=4,group=8,residual=200)")[1];
  ASSERT_EQ(three.formats.size(), 3u);
  EXPECT_GT(three.formats[0].blocks, three.formats[2].blocks);
  EXPECT_GT(three.formats[2].blocks, three.formats[1].blocks);
  EXPECT_EQ(three.format, CacheFormat::kBf16);
}

TEST(EngineTest, ARequestThatCanNeverFitIsRefusedWithNeededAndAvailableBlocks) {
  EngineHarness harness(Options(20));
  const auto refused = harness.engine->Submit(harness.Request(100, 20));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  // 119 cached tokens are 8 blocks in each of 4 layers.
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("needs 32 blocks"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("the pool has 20"));
  // 128 are no more: the last token drawn is never cached.
  EXPECT_THAT(harness.engine->Submit(harness.Request(100, 29)).status().ToString(),
              HasSubstr("needs 32 blocks"));
  EXPECT_THAT(harness.engine->Submit(harness.Request(100, 30)).status().ToString(),
              HasSubstr("needs 36 blocks"));
  // With less of a cache the same prompt fits.
  harness.Await(harness.MustSubmit(harness.Request(100, 20, "snapkv(budget=40,window=8)")));
  harness.ExpectEmptyPool();
}

TEST(EngineTest, BadRequestsAreRefusedWithTheReason) {
  EngineHarness harness(Options(400));
  const auto message = [&](const EngineRequest& request) {
    const auto result = harness.engine->Submit(request);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(message(harness.Request(0, 1)), HasSubstr("the prompt is empty"));
  EXPECT_THAT(message(harness.Request(5000, 1)), HasSubstr("5000 tokens"));
  EXPECT_THAT(message(harness.Request(10, 0)), HasSubstr("max_tokens is 0"));
  EXPECT_THAT(message(harness.Request(10, 4090)), HasSubstr("from 1 to 4086"));
  EngineRequest unknown = harness.Request(10, 1);
  unknown.prompt[3] = 1000;
  EXPECT_THAT(message(unknown), HasSubstr("holds 1000: token ids are from 0 to 999"));
  EngineRequest nan = harness.Request(10, 1);
  nan.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message(nan), HasSubstr("temperature"));
}

TEST(EngineTest, AdmissionNeverExceedsThePoolAndEveryRequestFinishes) {
  EngineHarness harness(Options(100));  // three requests of 32 blocks fit at once
  std::vector<RequestId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(harness.MustSubmit(harness.Request(100, 20)));
  for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
  EXPECT_LE(harness.engine->Snapshot()->high_water_blocks, 96u);
  EXPECT_LE(harness.control->largest_batch, 3);
  harness.ExpectEmptyPool();
}

TEST(EngineTest, TheQueueIsBounded) {
  EngineOptions options = Options(40);
  options.max_queue = 3;
  EngineHarness harness(options);
  harness.control->hold_at_step = 0;
  std::vector<RequestId> ids = {harness.MustSubmit(harness.Request(100, 20))};
  harness.AwaitHeld();
  for (int i = 0; i < 3; ++i) ids.push_back(harness.MustSubmit(harness.Request(100, 20)));
  const auto refused = harness.engine->Submit(harness.Request(100, 20));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("the queue is full"));
  EXPECT_EQ(RefusalReason(refused.status()), "queue_full");
  harness.Continue();
  for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
}

TEST(EngineTest, WhoHasAPlaceAlreadyIsNotInTheQueue) {
  EngineOptions options = Options(200);
  options.max_running = 4;
  options.max_queue = 1;
  EngineHarness harness(options);
  harness.control->hold_at_step = 1;
  std::vector<RequestId> ids = {harness.MustSubmit(harness.Request(100, 20))};
  harness.AwaitHeld();
  for (int i = 0; i < 4; ++i) ids.push_back(harness.MustSubmit(harness.Request(100, 20)));
  EXPECT_EQ(RefusalReason(harness.engine->Submit(harness.Request(100, 20)).status()), "queue_full");
  EXPECT_EQ(RefusalReason(harness.engine->CheckOpen()), "queue_full");
  harness.Continue();
  for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
  EXPECT_TRUE(harness.engine->CheckOpen().ok());
}

TEST(EngineTest, WhoIsStillToBeSubmittedHasHisPlaceBeforeOthers) {
  EngineOptions options = Options(200);
  options.max_running = 3;
  options.max_queue = 2;
  EngineHarness harness(options);
  for (int before = 0; before < 3 + 2; ++before) {
    EXPECT_TRUE(harness.engine->CheckOpen(before).ok()) << before;
  }
  EXPECT_EQ(RefusalReason(harness.engine->CheckOpen(3 + 2)), "queue_full");
}

TEST(EngineTest, WithoutBlocksThereIsNoPlaceForWhoIsStillToBeSubmitted) {
  EngineOptions options = Options(4 * 23);  // layers, and blocks of 16 for 64 + 299 tokens
  options.max_running = 100;
  options.max_queue = 2;
  EngineHarness harness(options);
  harness.control->hold_at_step = 1;
  const RequestId all = harness.MustSubmit(harness.Request(64, 300));
  harness.AwaitHeld();
  EXPECT_TRUE(harness.engine->CheckOpen(1).ok());
  EXPECT_EQ(RefusalReason(harness.engine->CheckOpen(2)), "queue_full");
  harness.engine->Cancel(all, FinishReason::kCancelled);
  harness.Continue();
  harness.Await(all);
}

TEST(EngineTest, ALargeRequestIsOvertakenOnlySoOften) {
  EngineOptions options = Options(40);
  options.max_overtakes = 2;
  EngineHarness harness(options);
  harness.control->hold_at_step = 1;
  harness.MustSubmit(harness.Request(60, 20));  // 20 of 40 blocks
  harness.AwaitHeld();
  const absl::Time start = absl::Now();
  const RequestId large = harness.MustSubmit(harness.Request(140, 10));  // 40 blocks: must wait
  std::vector<std::pair<RequestId, absl::Duration>>
      small;  // with when they were submitted, at most
  for (int i = 0; i < 6; ++i) {
    const RequestId id = harness.MustSubmit(harness.Request(40, 30));
    small.emplace_back(id, absl::Now() - start);
  }
  harness.Continue();
  const Collected done = harness.Await(large);
  EXPECT_TRUE(done.last.status.ok()) << done.last.status;
  int after = 0;
  for (const auto& [id, submitted] : small) {
    const double first_token = harness.Await(id).last.first_token_seconds;
    after += absl::ToDoubleSeconds(submitted) + first_token > done.last.first_token_seconds ? 1 : 0;
  }
  EXPECT_GE(after, 4) << "of six later requests at most two may pass";
}

TEST(EngineTest, CancellingFreesTheBlocksBeforeTheNextStep) {
  EngineHarness harness(Options(400));
  harness.control->hold_at_step = 3;
  const RequestId id = harness.MustSubmit(harness.Request(200, 1000));
  harness.AwaitHeld();
  harness.engine->Cancel(id, FinishReason::kCancelled);
  harness.Continue();
  const Collected result = harness.Await(id);
  EXPECT_EQ(harness.control->decode_steps, 4);
  EXPECT_EQ(result.last.reason, FinishReason::kCancelled);
  EXPECT_EQ(result.last.status.code(), absl::StatusCode::kCancelled);
  harness.ExpectEmptyPool();
}

TEST(EngineTest, CancellingWorksInEveryState) {
  EngineHarness harness(ShortestSlices(40));
  harness.control->hold_at_step = 0;
  const RequestId prefilling = harness.MustSubmit(harness.Request(100, 20));
  harness.AwaitHeld();
  const RequestId waiting = harness.MustSubmit(harness.Request(100, 20));
  harness.engine->Cancel(waiting, FinishReason::kCancelled);
  harness.engine->Cancel(prefilling, FinishReason::kCancelled);
  harness.Continue();
  EXPECT_EQ(harness.Await(waiting).last.reason, FinishReason::kCancelled);
  EXPECT_EQ(harness.Await(prefilling).last.reason, FinishReason::kCancelled);
  harness.engine->Cancel(9999, FinishReason::kCancelled);
  harness.ExpectEmptyPool();
  EXPECT_TRUE(harness.Await(harness.MustSubmit(harness.Request(100, 20))).last.status.ok());
}

TEST(EngineTest, DeadlinesEndRunningAndWaitingRequests) {
  EngineHarness harness(Options(40));
  harness.control->decode_delay_us = 2000;
  EngineRequest running = harness.Request(100, 20);
  EngineRequest waiting = harness.Request(100, 20);
  running.max_new_tokens = 25;
  running.deadline = waiting.deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  const RequestId first = harness.MustSubmit(running);
  const RequestId second = harness.MustSubmit(waiting);
  for (const RequestId id : {first, second}) {
    const Collected result = harness.Await(id);
    EXPECT_EQ(result.last.reason, FinishReason::kDeadline);
    EXPECT_EQ(result.last.status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  harness.ExpectEmptyPool();
}

TEST(EngineTest, StopTokensEndARequestUnlessBeforeTheMinimum) {
  EngineHarness harness(Options(400));
  EngineRequest request = harness.Request(10, 20);
  const std::vector<int32_t> all = harness.Expected(request);
  request.stop_token_ids = {all[4]};
  Collected result = harness.Await(harness.MustSubmit(request));
  EXPECT_EQ(result.tokens, std::vector<int32_t>(all.begin(), all.begin() + 4));
  EXPECT_EQ(result.last.reason, FinishReason::kStop);
  EXPECT_EQ(result.last.stop_token_id, all[4]);

  request.min_new_tokens = 8;
  result = harness.Await(harness.MustSubmit(request));
  EXPECT_GE(result.tokens.size(), 8u);
  EXPECT_NE(result.tokens[4], all[4]) << "a stop token is not drawn before the minimum";
  request.min_new_tokens = 5;
  result = harness.Await(harness.MustSubmit(request));
  EXPECT_NE(result.tokens[4], all[4]) << "nor as its last token";
  request.min_new_tokens = 4;
  EXPECT_EQ(harness.Await(harness.MustSubmit(request)).tokens.size(), 4u);
}

TEST(EngineTest, AModelErrorEndsItsRequestsAndNothingElse) {
  EngineHarness harness(Options(400));
  harness.control->hold_at_step = 2;
  const RequestId id = harness.MustSubmit(harness.Request(50, 1000));
  harness.AwaitHeld();
  harness.control->fail_decode = true;
  harness.Continue();
  const Collected result = harness.Await(id);
  EXPECT_EQ(result.last.reason, FinishReason::kError);
  EXPECT_EQ(result.last.status.code(), absl::StatusCode::kInternal);
  harness.control->fail_decode = false;
  harness.ExpectEmptyPool();
  EXPECT_TRUE(harness.Await(harness.MustSubmit(harness.Request(50, 10))).last.status.ok());
}

TEST(EngineTest, LogitsThatAreNoNumbersEndARequestWithAnError) {
  EngineHarness harness(Options(400));
  harness.control->overflow = true;
  Collected result = harness.Await(harness.MustSubmit(harness.Request(50, 10)));
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(result.last.reason, FinishReason::kError);
  EXPECT_THAT(std::string(result.last.status.message()), HasSubstr("no finite logit"));
  harness.control->overflow = false;
  harness.control->hold_at_step = 2;
  const RequestId id = harness.MustSubmit(harness.Request(50, 1000));
  harness.AwaitHeld();
  harness.control->overflow = true;
  harness.Continue();
  result = harness.Await(id);
  EXPECT_EQ(result.tokens.size(), 3u);
  EXPECT_EQ(result.last.reason, FinishReason::kError);
  harness.control->overflow = false;
  harness.ExpectEmptyPool();
}

TEST(EngineTest, DrainingRefusesNewRequestsAndFinishesRunningOnes) {
  EngineHarness harness(Options(400));
  harness.control->hold_at_step = 1;
  const EngineRequest request = harness.Request(50, 30);
  const RequestId id = harness.MustSubmit(request);
  harness.AwaitHeld();
  harness.engine->Drain(absl::Now() + absl::Seconds(30));
  EXPECT_EQ(harness.engine->Submit(request).status().code(), absl::StatusCode::kUnavailable);
  harness.Continue();
  EXPECT_EQ(harness.Await(id).tokens, harness.Expected(request));
  harness.ExpectEmptyPool();
}

TEST(EngineTest, ADrainDeadlineEndsWhatIsLeft) {
  EngineHarness harness(Options(400));
  harness.control->decode_delay_us = 5000;
  const RequestId id = harness.MustSubmit(harness.Request(50, 1000));
  harness.AwaitTokens(id, 1);
  harness.engine->Drain(absl::Now() + absl::Milliseconds(20));
  const Collected result = harness.Await(id);
  EXPECT_EQ(result.last.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(result.last.reason, FinishReason::kUnavailable) << "nobody cancelled it";
  harness.ExpectEmptyPool();
}

TEST(EngineTest, MoreRequestsRunAtOnceThanIfEveryLayerTookTheLargestLayersBlocks) {
  constexpr size_t kPool = 600;
  EngineHarness harness(Options(kPool));
  harness.control->decode_delay_us = 2000;  // all that fit are there before the first ends
  const EngineRequest request = harness.Request(1000, 32, "pyramidkv(budget=128,window=8)");
  const CachePlan plan = request.policy->Plan({kLayers, 4, 2, 8}, {1000, 32});
  size_t blocks = 0;
  size_t largest = 0;
  for (const LayerPlan& layer : plan.layers) {
    blocks += (layer.prompt_tokens_kept + 32 + 15) / 16;
    largest = std::max(largest, (layer.prompt_tokens_kept + 32 + 15) / 16);
  }
  std::vector<RequestId> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(harness.MustSubmit(request));
  for (const RequestId id : ids) EXPECT_TRUE(harness.Await(id).last.status.ok());
  const int peak = harness.control->largest_batch;
  EXPECT_GE(peak, static_cast<int>(0.97 * kPool / static_cast<double>(blocks)));
  EXPECT_GE(peak, 1.6 * static_cast<double>(kPool / (kLayers * largest)));
}

}  // namespace
}  // namespace ziggurat

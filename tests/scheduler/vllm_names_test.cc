#include "scheduler/vllm_names.h"

#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "scheduler/engine.h"
#include "scheduler/metrics.h"

namespace ziggurat {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string Page(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.Collect());
}

/// Three layers in a pool of 100 blocks of 16 tokens, 30 used and 20 reserved.
std::shared_ptr<const EngineSnapshot> SmallCache() {
  auto made = std::make_shared<EngineSnapshot>();
  EngineSnapshot& snapshot = *made;
  snapshot.block_bytes = 4096;
  snapshot.block_tokens = 16;
  snapshot.total_blocks = 100;
  snapshot.used_blocks = 30;
  snapshot.reserved_blocks = 20;
  snapshot.running = 4;
  snapshot.waiting = 7;
  snapshot.layers.resize(3);
  return made;
}

TEST(VllmNames, AreAbsentUntilAskedFor) {
  Metrics metrics;
  metrics.DeclareLayers(3);
  metrics.SetOccupancy(SmallCache());
  EXPECT_THAT(Page(metrics), Not(HasSubstr("vllm:")));
  EXPECT_THAT(Page(metrics), HasSubstr("ziggurat_kv_utilization 0.5\n"));
  metrics.ExportVllmNames("needle");
  EXPECT_THAT(Page(metrics), HasSubstr("vllm:"));
}

TEST(VllmNames, GiveTheSameValuesWithTheModelsName) {
  Metrics metrics;
  metrics.ExportVllmNames("needle");
  metrics.DeclareLayers(3);
  metrics.SetOccupancy(SmallCache());
  metrics.CountPromptTokens(200);
  metrics.ObserveInterToken({0.3});
  metrics.ObserveTokens(200, 5);
  const std::string page = Page(metrics);
  for (const char* line : {
           "vllm:num_requests_waiting{model_name=\"needle\"} 7\n",
           "vllm:num_requests_running{model_name=\"needle\"} 4\n",
           "vllm:kv_cache_usage_perc{model_name=\"needle\"} 0.5\n",
           "vllm:gpu_cache_usage_perc{model_name=\"needle\"} 0.5\n",
           "vllm:prompt_tokens_total{model_name=\"needle\"} 200\n",
           "vllm:num_preemptions_total{model_name=\"needle\"} 0\n",
           "vllm:inter_token_latency_seconds_count{model_name=\"needle\"} 1\n",
           "vllm:time_per_output_token_seconds_bucket{model_name=\"needle\",le=\"0.25\"} 0\n",
           "vllm:time_per_output_token_seconds_bucket{model_name=\"needle\",le=\"0.5\"} 1\n",
           "vllm:request_prompt_tokens_sum{model_name=\"needle\"} 200\n",
           "vllm:request_generation_tokens_sum{model_name=\"needle\"} 5\n",
           "# TYPE vllm:e2e_request_latency_seconds histogram\n",
           "# TYPE vllm:request_success_total counter\n",
       }) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(VllmNames, CountABlockForAllLayersOnce) {
  Metrics metrics;
  metrics.ExportVllmNames("needle");
  metrics.DeclareLayers(3);
  metrics.SetOccupancy(SmallCache());
  EXPECT_THAT(Page(metrics),
              HasSubstr("vllm:cache_config_info{block_size=\"16\",model_name=\"needle\","
                        "num_gpu_blocks=\"33\"} 1\n"));
}

TEST(VllmNames, AddUpWhoGaveUpAndWhoRanOutOfTime) {
  Metrics metrics;
  metrics.ExportVllmNames("needle");
  const std::map<FinishReason, int> finished = {
      {FinishReason::kStop, 5},     {FinishReason::kLength, 4},      {FinishReason::kCancelled, 3},
      {FinishReason::kDeadline, 2}, {FinishReason::kUnavailable, 6}, {FinishReason::kError, 1}};
  for (const auto& [reason, count] : finished) {
    for (int i = 0; i < count; ++i) metrics.CountFinished(reason);
  }
  const std::string page = Page(metrics);
  const std::map<std::string, int> expected = {
      {"stop", 5}, {"length", 4}, {"abort", 11}, {"error", 1}};
  for (const auto& [reason, count] : expected) {
    EXPECT_THAT(page, HasSubstr("vllm:request_success_total{finished_reason=\"" + reason +
                                "\",model_name=\"needle\"} " + std::to_string(count) + "\n"));
  }
  EXPECT_THAT(page, Not(HasSubstr("finished_reason=\"deadline\"")));
}

TEST(VllmNames, LeaveOutWhatIsNotThere) {
  std::vector<prometheus::MetricFamily> none;
  AddVllmNames("needle", &none);
  std::vector<std::string> names;
  for (const prometheus::MetricFamily& family : none) names.push_back(family.name);
  EXPECT_THAT(names, Each(HasSubstr("vllm:prefix_cache_")));
  EXPECT_THAT(names, SizeIs(2));
}

}  // namespace
}  // namespace ziggurat

#include "scheduler/vllm_names.h"

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

namespace ziggurat {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct Name {
  const char* ours;
  const char* theirs;
};

// The same value under another name. Some have two: vLLM has renamed them, and older dashboards and
// pickers ask for the older one.
constexpr Name kNames[] = {
    {"ziggurat_requests_waiting", "vllm:num_requests_waiting"},
    {"ziggurat_requests_running", "vllm:num_requests_running"},
    {"ziggurat_kv_utilization", "vllm:kv_cache_usage_perc"},
    {"ziggurat_kv_utilization", "vllm:gpu_cache_usage_perc"},
    {"ziggurat_preemptions_total", "vllm:num_preemptions_total"},
    {"ziggurat_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"ziggurat_generated_tokens_total", "vllm:generation_tokens_total"},
    {"ziggurat_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"ziggurat_inter_token_seconds", "vllm:time_per_output_token_seconds"},
    {"ziggurat_inter_token_seconds", "vllm:inter_token_latency_seconds"},
    {"ziggurat_request_seconds", "vllm:e2e_request_latency_seconds"},
    {"ziggurat_queue_seconds", "vllm:request_queue_time_seconds"},
    {"ziggurat_prefill_seconds", "vllm:request_prefill_time_seconds"},
    {"ziggurat_decode_seconds", "vllm:request_decode_time_seconds"},
    {"ziggurat_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"ziggurat_request_generated_tokens", "vllm:request_generation_tokens"},
    {"ziggurat_request_generated_tokens", "vllm:request_max_num_generation_tokens"},
    {"ziggurat_step_tokens", "vllm:iteration_tokens_total"},
};

const MetricFamily* Find(const std::vector<MetricFamily>& families, std::string_view name) {
  for (const MetricFamily& family : families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

std::string_view LabelOf(const ClientMetric& metric, std::string_view name) {
  for (const ClientMetric::Label& label : metric.label) {
    if (label.name == name) return label.value;
  }
  return {};
}

/// The value of a gauge without labels of its own; 0 where there is none.
double GaugeValue(const std::vector<MetricFamily>& families, std::string_view name) {
  const MetricFamily* family = Find(families, name);
  return family == nullptr || family->metric.empty() ? 0 : family->metric.front().gauge.value;
}

size_t CountLayers(const std::vector<MetricFamily>& families) {
  std::set<std::string_view> layers;
  if (const MetricFamily* blocks = Find(families, "ziggurat_kv_blocks")) {
    for (const ClientMetric& metric : blocks->metric) layers.insert(LabelOf(metric, "layer"));
  }
  return layers.size();
}

MetricFamily CacheConfig(const std::vector<MetricFamily>& families, size_t layers,
                         const std::string& model_name) {
  const auto whole = [&](std::string_view name) {
    return static_cast<uint64_t>(GaugeValue(families, name));
  };
  ClientMetric info;
  info.label = {{"block_size", std::to_string(whole("ziggurat_pool_block_tokens"))},
                {"model_name", model_name},
                {"num_gpu_blocks", std::to_string(whole("ziggurat_pool_blocks_total") / layers)}};
  info.gauge.value = 1;
  return {"vllm:cache_config_info",
          "Block size in tokens, and blocks of all layers together",
          MetricType::Gauge,
          {info}};
}

// Who gave up, who ran out of time and whom the server dropped are one to vLLM.
std::string VllmReason(std::string_view reason) {
  for (const char* early : {"cancelled", "deadline", "queue_time", "unavailable"}) {
    if (reason == early) return "abort";
  }
  return std::string(reason);
}

MetricFamily Finished(const MetricFamily& ours, const std::string& model_name) {
  MetricFamily theirs{"vllm:request_success_total", ours.help, ours.type, {}};
  for (const ClientMetric& metric : ours.metric) {
    const std::string reason = VllmReason(LabelOf(metric, "reason"));
    ClientMetric* sum = nullptr;
    for (ClientMetric& other : theirs.metric) {
      if (LabelOf(other, "finished_reason") == reason) sum = &other;
    }
    if (sum == nullptr) {
      sum = &theirs.metric.emplace_back();
      sum->label = {{"finished_reason", reason}, {"model_name", model_name}};
    }
    sum->counter.value += metric.counter.value;
  }
  return theirs;
}

// No prefix is cached, so none is asked for either.
MetricFamily NoPrefixCache(const char* name, const std::string& model_name) {
  ClientMetric none;
  none.label = {{"model_name", model_name}};
  return {name,
          "Prompt tokens looked up in, or found in, a prefix cache; there is none",
          MetricType::Counter,
          {none}};
}

}  // namespace

void AddVllmNames(const std::string& model_name, std::vector<MetricFamily>* families) {
  std::vector<MetricFamily> added;
  for (const Name& name : kNames) {
    const MetricFamily* ours = Find(*families, name.ours);
    if (ours == nullptr) continue;
    MetricFamily& theirs = added.emplace_back(*ours);
    theirs.name = name.theirs;
    for (ClientMetric& metric : theirs.metric) metric.label.push_back({"model_name", model_name});
  }
  if (const MetricFamily* finished = Find(*families, "ziggurat_requests_finished_total")) {
    added.push_back(Finished(*finished, model_name));
  }
  if (const size_t layers = CountLayers(*families); layers > 0) {
    added.push_back(CacheConfig(*families, layers, model_name));
  }
  added.push_back(NoPrefixCache("vllm:prefix_cache_queries_total", model_name));
  added.push_back(NoPrefixCache("vllm:prefix_cache_hits_total", model_name));
  for (MetricFamily& family : added) families->push_back(std::move(family));
}

}  // namespace ziggurat

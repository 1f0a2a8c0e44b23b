#include "scheduler/metrics.h"

#include <map>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "block_manager/cache_format.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "scheduler/vllm_names.h"

namespace ziggurat {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

const Histogram::BucketBoundaries kLatencyBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const Histogram::BucketBoundaries kStepBuckets = {1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,
                                                  1e-3, 2.5e-3, 5e-3, 0.01, 0.025,  0.05,
                                                  0.1,  0.25,   0.5,  1,    2.5};
const Histogram::BucketBoundaries kBatchBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
const Histogram::BucketBoundaries kTokenBuckets = {
    1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1048576};
const Histogram::BucketBoundaries kBlockBuckets = {8,    16,   32,   64,    128,   256,    512,
                                                   1024, 2048, 4096, 16384, 65536, 262144, 1048576};

Family<Gauge>& Gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

Family<Counter>& Counters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Histogram>& Histograms(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

Gauge& OneGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return Gauges(registry, name, help).Add({});
}

Counter& OneCounter(prometheus::Registry& registry, const char* name, const char* help) {
  return Counters(registry, name, help).Add({});
}

Histogram& OneHistogram(prometheus::Registry& registry, const char* name, const char* help,
                        const Histogram::BucketBoundaries& buckets) {
  return Histograms(registry, name, help).Add({}, buckets);
}

/// Observations of each bucket; a histogram collects them as sums over the buckets up to it.
std::vector<double> BucketCounts(const Histogram& histogram) {
  std::vector<double> counts;
  double before = 0;
  for (const auto& bucket : histogram.Collect().histogram.bucket) {
    const auto up_to = static_cast<double>(bucket.cumulative_count);
    counts.push_back(up_to - before);
    before = up_to;
  }
  return counts;
}

}  // namespace

/// Each member is registered where it is declared.
struct Metrics::Series {
  explicit Series(prometheus::Registry& r) : registry(r) {
    // Admission against whole plans leaves nothing to preempt for, so nothing counts here.
    OneCounter(r, "ziggurat_preemptions_total", "Running requests that had to give up blocks");
    for (const FinishReason reason : kFinishReasons) {
      finished.Add({{"reason", std::string(FinishReasonName(reason))}});
    }
    for (const Refusal reason : kRefusals) {
      refused.Add({{"reason", std::string(RefusalName(reason))}});
    }
  }

  Histogram& StepPart(const char* part) { return step_part.Add({{"part", part}}, kStepBuckets); }

  struct Layer {
    Gauge* used;
    Gauge* reserved;
    Gauge* live;
    Gauge* waste;
  };

  prometheus::Registry& registry;

  Family<Gauge>& kv_blocks = Gauges(registry, "ziggurat_kv_blocks",
                                    "Blocks of the KV cache by layer; state: used or reserved");
  Family<Gauge>& kv_format_blocks = Gauges(registry, "ziggurat_kv_format_blocks",
                                           "Used blocks of the KV cache by format, all layers");
  Family<Gauge>& live_bytes = Gauges(registry, "ziggurat_kv_live_bytes",
                                     "Bytes of used blocks that hold live tokens, by layer");
  Family<Gauge>& tail_waste_bytes = Gauges(registry, "ziggurat_kv_tail_waste_bytes",
                                           "Bytes of used blocks behind the last token, by layer");
  Family<Gauge>& compression_ratio =
      Gauges(registry, "ziggurat_kv_compression_ratio",
             "Blocks that full would hold over blocks held, of the last "
             "finished request of a policy");
  Family<Counter>& finished =
      Counters(registry, "ziggurat_requests_finished_total", "Requests finished, by reason");
  Family<Counter>& refused =
      Counters(registry, "ziggurat_admissions_refused_total", "Requests refused, by reason");
  Family<Counter>& lazy = Counters(registry, "ziggurat_lazy_layers_total",
                                   "Layers of requests that a test found lazy, by layer");
  Family<Gauge>& certificate_expiry =
      Gauges(registry, "ziggurat_tls_certificate_expiry_timestamp_seconds",
             "When the certificate of the ports expires, in Unix time");
  Family<Histogram>& step_part =
      Histograms(registry, "ziggurat_step_seconds", "Time of an engine step, by part");
  Gauge& pool_total = OneGauge(registry, "ziggurat_pool_blocks_total", "Blocks of the pool");
  Gauge& pool_used = OneGauge(registry, "ziggurat_pool_blocks_used", "Blocks that hold KV cache");
  Gauge& pool_reserved = OneGauge(registry, "ziggurat_pool_blocks_reserved",
                                  "Free blocks promised to running requests");
  Gauge& pool_high_water =
      OneGauge(registry, "ziggurat_pool_blocks_high_water", "Most blocks ever used at once");
  Gauge& utilization = OneGauge(registry, "ziggurat_kv_utilization",
                                "Blocks used and reserved over blocks of the pool, 0 to 1");
  Gauge& block_bytes = OneGauge(registry, "ziggurat_pool_block_bytes", "Bytes of one block");
  Gauge& block_tokens = OneGauge(registry, "ziggurat_pool_block_tokens",
                                 "Tokens of a layer that a block holds as they are computed");
  Gauge& workspace_capacity = OneGauge(registry, "ziggurat_workspace_capacity_bytes",
                                       "Bytes reserved for the prefill workspace");
  Gauge& workspace_high_water = OneGauge(registry, "ziggurat_workspace_high_water_bytes",
                                         "Most bytes that prefill batches have used");
  Gauge& running =
      OneGauge(registry, "ziggurat_requests_running", "Requests prefilling or decoding");
  Gauge& waiting = OneGauge(registry, "ziggurat_requests_waiting",
                            "Requests waiting for room in the pool or their turn in prefill");
  Counter& prompt_tokens =
      OneCounter(registry, "ziggurat_prompt_tokens_total", "Prompt tokens prefilled");
  Counter& generated_tokens =
      OneCounter(registry, "ziggurat_generated_tokens_total", "Tokens generated");
  Counter& device_decode = OneCounter(registry, "ziggurat_device_decode_seconds_total",
                                      "Seconds in which a GPU was at work on decode steps");
  Counter& device_edit = OneCounter(registry, "ziggurat_device_edit_seconds_total",
                                    "Seconds in which a GPU copied and merged cached tokens");
  Counter& pod_distant = OneCounter(registry, "ziggurat_pod_distant_total",
                                    "Attentions of a query to the distant tokens of a layer and KV "
                                    "head that PoD considered");
  Counter& pod_skipped =
      OneCounter(registry, "ziggurat_pod_skipped_total", "Those of them that were left out");
  Histogram& queue_time = OneHistogram(
      registry, "ziggurat_queue_seconds",
      "From arrival to prefill, or to the end of who never came to that", kLatencyBuckets);
  Histogram& first_token = OneHistogram(registry, "ziggurat_time_to_first_token_seconds",
                                        "From arrival to the first token (TTFT)", kLatencyBuckets);
  Histogram& inter_token = OneHistogram(registry, "ziggurat_inter_token_seconds",
                                        "Between two tokens of a request (ITL)", kLatencyBuckets);
  Histogram& prefill =
      OneHistogram(registry, "ziggurat_prefill_seconds",
                   "From the start of prefill to the first token", kLatencyBuckets);
  Histogram& decode = OneHistogram(registry, "ziggurat_decode_seconds",
                                   "From the first token to the last", kLatencyBuckets);
  Histogram& end_to_end = OneHistogram(registry, "ziggurat_request_seconds",
                                       "From arrival to the end, whatever it was", kLatencyBuckets);
  Histogram& batch_size = OneHistogram(registry, "ziggurat_decode_batch_size",
                                       "Sequences of a decode step", kBatchBuckets);
  Histogram& step_tokens = OneHistogram(registry, "ziggurat_step_tokens",
                                        "Tokens computed by an engine step", kTokenBuckets);
  Histogram& request_prompt_tokens =
      OneHistogram(registry, "ziggurat_request_prompt_tokens",
                   "Prompt tokens of a finished request", kTokenBuckets);
  Histogram& request_generated_tokens =
      OneHistogram(registry, "ziggurat_request_generated_tokens",
                   "Tokens generated for a finished request", kTokenBuckets);
  Histogram& admitted_blocks =
      OneHistogram(registry, "ziggurat_admitted_blocks",
                   "Blocks of the plan that a request was admitted with", kBlockBuckets);

  // Observed in every step.
  Histogram& step_schedule = StepPart("schedule");
  Histogram& step_model = StepPart("model");
  Histogram& step_attention = StepPart("attention");
  Histogram& step_sample = StepPart("sample");
  std::vector<Layer> layers;
  std::vector<Counter*> lazy_layers;
  std::map<std::string, Gauge*> formats;  ///< those seen so far
};

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      series_(std::make_shared<Series>(*registry_)) {}

void Metrics::DeclareLayers(int num_layers) {
  std::lock_guard lock(mutex_);
  for (int i = static_cast<int>(series_->layers.size()); i < num_layers; ++i) {
    const std::string layer = std::to_string(i);
    series_->layers.push_back({&series_->kv_blocks.Add({{"layer", layer}, {"state", "used"}}),
                               &series_->kv_blocks.Add({{"layer", layer}, {"state", "reserved"}}),
                               &series_->live_bytes.Add({{"layer", layer}}),
                               &series_->tail_waste_bytes.Add({{"layer", layer}})});
    series_->lazy_layers.push_back(&series_->lazy.Add({{"layer", layer}}));
  }
  for (const char* format : {"bf16", "f32"}) FormatGauge(format);
}

Gauge& Metrics::FormatGauge(const std::string& format) const {
  Gauge*& gauge = series_->formats[format];
  if (gauge == nullptr) gauge = &series_->kv_format_blocks.Add({{"format", format}});
  return *gauge;
}

void Metrics::SetOccupancy(std::shared_ptr<const EngineSnapshot> snapshot) {
  std::lock_guard lock(occupancy_mutex_);
  for (const LayerSnapshot& layer : snapshot->layers) {
    for (const auto& [format, blocks] : layer.blocks_by_format) {
      formats_.insert(CacheFormatName(format));
    }
  }
  occupancy_.swap(snapshot);  // the old one is freed behind the lock
}

void Metrics::CountWaitingTexts(int change) { waiting_texts_ += change; }

std::shared_ptr<const EngineSnapshot> Metrics::Occupancy() const {
  std::lock_guard lock(occupancy_mutex_);
  return occupancy_;
}

int Metrics::Waiting(const EngineSnapshot* occupancy) const {
  return waiting_texts_ + (occupancy == nullptr ? 0 : occupancy->waiting);
}

void Metrics::ShowOccupancy() const {
  Series& s = *series_;
  const std::shared_ptr<const EngineSnapshot> occupancy = Occupancy();
  s.waiting.Set(Waiting(occupancy.get()));
  if (occupancy == nullptr) return;
  const EngineSnapshot& snapshot = *occupancy;
  s.pool_total.Set(static_cast<double>(snapshot.total_blocks));
  s.pool_used.Set(static_cast<double>(snapshot.used_blocks));
  s.pool_reserved.Set(static_cast<double>(snapshot.reserved_blocks));
  s.pool_high_water.Set(static_cast<double>(snapshot.high_water_blocks));
  if (snapshot.total_blocks > 0) {
    s.utilization.Set(static_cast<double>(snapshot.used_blocks + snapshot.reserved_blocks) /
                      static_cast<double>(snapshot.total_blocks));
  }
  s.block_bytes.Set(static_cast<double>(snapshot.block_bytes));
  s.block_tokens.Set(snapshot.block_tokens);
  s.workspace_capacity.Set(static_cast<double>(snapshot.workspace_capacity_bytes));
  s.workspace_high_water.Set(static_cast<double>(snapshot.workspace_high_water_bytes));
  s.running.Set(snapshot.running);
  std::map<std::string, size_t> by_format;
  for (const auto& [format, gauge] : s.formats) by_format[format] = 0;  // what is gone is 0
  {
    std::lock_guard lock(occupancy_mutex_);
    for (const std::string& format : formats_) by_format[format] = 0;
  }
  for (size_t i = 0; i < snapshot.layers.size() && i < s.layers.size(); ++i) {
    const LayerSnapshot& layer = snapshot.layers[i];
    s.layers[i].used->Set(static_cast<double>(layer.used_blocks));
    s.layers[i].reserved->Set(static_cast<double>(layer.reserved_blocks));
    s.layers[i].live->Set(static_cast<double>(layer.live_bytes));
    s.layers[i].waste->Set(static_cast<double>(layer.tail_waste_bytes));
    for (const auto& [format, blocks] : layer.blocks_by_format) {
      by_format[CacheFormatName(format)] += blocks;
    }
  }
  for (const auto& [format, blocks] : by_format) {
    FormatGauge(format).Set(static_cast<double>(blocks));
  }
}

void Metrics::SetCompressionRatio(std::string_view policy, double ratio) {
  series_->compression_ratio.Add({{"policy", std::string(policy)}}).Set(ratio);
}
void Metrics::CountLazyLayer(int layer) { series_->lazy_layers[layer]->Increment(); }
void Metrics::CountDistant(uint64_t attended, uint64_t skipped) {
  series_->pod_distant.Increment(static_cast<double>(attended + skipped));
  series_->pod_skipped.Increment(static_cast<double>(skipped));
}
void Metrics::CountFinished(FinishReason reason) {
  series_->finished.Add({{"reason", std::string(FinishReasonName(reason))}}).Increment();
}
void Metrics::CountRefused(Refusal reason) {
  series_->refused.Add({{"reason", std::string(RefusalName(reason))}}).Increment();
}
void Metrics::SetCertificateExpiry(double unix_seconds) {
  series_->certificate_expiry.Add({}).Set(unix_seconds);
}
void Metrics::CountPromptTokens(int tokens) { series_->prompt_tokens.Increment(tokens); }
void Metrics::CountGeneratedTokens(int tokens) { series_->generated_tokens.Increment(tokens); }
void Metrics::CountDeviceSeconds(double steps, double edits) {
  series_->device_decode.Increment(steps);
  series_->device_edit.Increment(edits);
}
void Metrics::ObserveAdmittedBlocks(size_t blocks) {
  series_->admitted_blocks.Observe(static_cast<double>(blocks));
}
void Metrics::ObserveTokens(int prompt_tokens, int generated_tokens) {
  if (generated_tokens == 0) return;
  series_->request_prompt_tokens.Observe(prompt_tokens);
  series_->request_generated_tokens.Observe(generated_tokens);
}
void Metrics::ObserveQueueTime(double seconds) { series_->queue_time.Observe(seconds); }
void Metrics::ObserveFirstToken(double seconds) { series_->first_token.Observe(seconds); }
void Metrics::ObserveInterToken(absl::Span<const double> seconds) {
  std::vector<double> counts(kLatencyBuckets.size() + 1);
  double sum = 0;
  for (const double one : seconds) {
    ++counts[absl::c_lower_bound(kLatencyBuckets, one) - kLatencyBuckets.begin()];
    sum += one;
  }
  series_->inter_token.ObserveMultiple(counts, sum);
}
void Metrics::ObservePrefill(double seconds) { series_->prefill.Observe(seconds); }
void Metrics::ObserveDecode(double seconds) { series_->decode.Observe(seconds); }
void Metrics::ObserveEndToEnd(double seconds) { series_->end_to_end.Observe(seconds); }
void Metrics::ObserveStep(const StepSeconds& seconds) {
  series_->step_schedule.Observe(seconds.schedule);
  series_->step_model.Observe(seconds.model);
  series_->step_attention.Observe(seconds.attention);
  series_->step_sample.Observe(seconds.sample);
}
void Metrics::ObserveBatchSize(int sequences) { series_->batch_size.Observe(sequences); }
void Metrics::ObserveStepTokens(int tokens) { series_->step_tokens.Observe(tokens); }

MetricTotals Metrics::Totals() const {
  const Series& s = *series_;
  MetricTotals totals;
  totals.prompt_tokens = s.prompt_tokens.Value();
  totals.generated_tokens = s.generated_tokens.Value();
  for (const FinishReason of : kFinishReasons) {
    const std::string reason(FinishReasonName(of));
    totals.finished[reason] = s.finished.Add({{"reason", reason}}).Value();
  }
  for (const Refusal reason : kRefusals) {
    totals.refused += s.refused.Add({{"reason", std::string(RefusalName(reason))}}).Value();
  }
  totals.first_token_counts = BucketCounts(s.first_token);
  totals.inter_token_counts = BucketCounts(s.inter_token);
  const std::shared_ptr<const EngineSnapshot> occupancy = Occupancy();
  totals.waiting = Waiting(occupancy.get());
  if (occupancy != nullptr) {
    totals.running = occupancy->running;
    totals.used_blocks = static_cast<double>(occupancy->used_blocks);
    totals.reserved_blocks = static_cast<double>(occupancy->reserved_blocks);
  }
  return totals;
}

absl::Span<const double> Metrics::LatencyBounds() { return kLatencyBuckets; }

void Metrics::ExportVllmNames(std::string model_name) {
  std::lock_guard lock(mutex_);
  vllm_model_name_ = std::move(model_name);
}

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  std::lock_guard lock(mutex_);
  ShowOccupancy();
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  if (!vllm_model_name_.empty()) AddVllmNames(vllm_model_name_, &families);
  return families;
}

}  // namespace ziggurat

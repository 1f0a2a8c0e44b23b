// Every metric of the daemon, in one place. docs/metrics.md is its documentation.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "scheduler/refusal.h"

namespace ziggurat {

enum class FinishReason : uint8_t;
struct EngineSnapshot;

/// A few values that change quickly, for whoever looks every second: much cheaper than Collect.
struct MetricTotals {
  // Counted since the start.
  double prompt_tokens = 0;
  double generated_tokens = 0;
  std::map<std::string, double> finished;  ///< by reason
  double refused = 0;
  // [Metrics::LatencyBounds() and one more]: observations between a bound and the one before.
  std::vector<double> first_token_counts;
  std::vector<double> inter_token_counts;
  // As of the latest snapshot.
  double running = 0;
  double waiting = 0;
  double used_blocks = 0;
  double reserved_blocks = 0;
};

/// Where the time of an engine step went.
struct StepSeconds {
  double schedule = 0;  ///< all but what follows
  double model = 0;     ///< without attention and sampling
  double attention = 0;
  double sample = 0;
};

/// Owns the registry. Safe from any thread. Label values are bounded: layers, states, policy names
/// and reasons; never a request id.
class Metrics {
 public:
  Metrics();
  /// Creates the series of `num_layers` layers, so that they exist before the first request.
  void DeclareLayers(int num_layers);

  // ---- Engine ----
  /// What Collect shows of the cache, until the next one; all of it of one snapshot.
  void SetOccupancy(std::shared_ptr<const EngineSnapshot> snapshot);
  void SetCompressionRatio(std::string_view policy, double ratio);
  void CountLazyLayer(int layer);
  void CountDistant(uint64_t attended, uint64_t skipped);
  void CountFinished(FinishReason reason);
  void CountRefused(Refusal reason);
  void CountPromptTokens(int tokens);
  void CountGeneratedTokens(int tokens);
  void ObserveAdmittedBlocks(size_t blocks);  ///< of the plan that a request was admitted with
  /// Of a finished request, if it has generated something.
  void ObserveTokens(int prompt_tokens, int generated_tokens);
  void ObserveQueueTime(double seconds);
  void ObserveFirstToken(double seconds);
  void ObserveInterToken(absl::Span<const double> seconds);
  void ObservePrefill(double seconds);  ///< from the first layer's start to the first token
  void ObserveDecode(double seconds);   ///< from the first token to the last
  void ObserveEndToEnd(double seconds);
  void ObserveStep(const StepSeconds& seconds);
  void CountDeviceSeconds(double steps, double edits);  ///< DeviceSeconds
  void ObserveBatchSize(int sequences);
  /// Tokens that a step has computed; those of a prompt count in the step that ends its prefill.
  void ObserveStepTokens(int tokens);

  // ---- Service ----
  /// So many more requests (or fewer) wait whose texts are still to be tokenized.
  void CountWaitingTexts(int change);

  // ---- Ports ----
  /// When the certificate that the ports show expires; no such series before the first call.
  void SetCertificateExpiry(double unix_seconds);

  /// From now on Collect gives the values under vLLM's names too, for the model of that name.
  void ExportVllmNames(std::string model_name);
  /// What a scrape sees.
  std::vector<prometheus::MetricFamily> Collect() const;

  MetricTotals Totals() const;
  /// Upper bounds in seconds of the buckets of every latency; the last one has none.
  static absl::Span<const double> LatencyBounds();

 private:
  struct Series;
  std::shared_ptr<const EngineSnapshot> Occupancy() const;
  int Waiting(const EngineSnapshot* occupancy) const;
  // With the mutex held.
  void ShowOccupancy() const;
  prometheus::Gauge& FormatGauge(const std::string& format) const;

  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<Series> series_;
  std::atomic<int> waiting_texts_ = 0;
  /// Of who collects, and of the series that it sets then.
  mutable std::mutex mutex_;
  std::string vllm_model_name_;  ///< empty: none of vLLM's names
  /// The engine does not wait for who collects.
  mutable std::mutex occupancy_mutex_;
  std::shared_ptr<const EngineSnapshot> occupancy_;  ///< null: there was none
  std::set<std::string> formats_;                    ///< of all that there were
};

}  // namespace ziggurat

// Every metric of the daemon, in one place. docs/metrics.md is its documentation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace ziggurat {

struct EngineSnapshot;

/// Owns the registry. Safe from any thread. Label values are bounded: layers, states, policy names
/// and reasons; never a request id.
class Metrics {
 public:
  Metrics();
  /// Creates the series of `num_layers` layers, so that they exist before the first request.
  void DeclareLayers(int num_layers);

  // ---- Engine ----
  void SetOccupancy(const EngineSnapshot& snapshot);
  void SetCompressionRatio(std::string_view policy, double ratio);
  void CountLazyLayer(int layer);
  void CountDistant(uint64_t attended, uint64_t skipped);
  void CountFinished(std::string_view reason);
  void CountRefused(std::string_view reason);  ///< "invalid", "queue_full", ...: docs/metrics.md
  void CountPromptTokens(int tokens);
  void CountGeneratedTokens(int tokens);
  void ObserveQueueTime(double seconds);
  void ObserveFirstToken(double seconds);
  void ObserveInterToken(absl::Span<const double> seconds);
  void ObserveEndToEnd(double seconds);
  /// part: "schedule", "model", "attention", "sample".
  void ObserveStepPart(std::string_view part, double seconds);
  void ObserveBatchSize(int sequences);

  prometheus::Registry& registry() { return *registry_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  struct Series;
  prometheus::Gauge& FormatGauge(const std::string& format);
  std::shared_ptr<Series> series_;
};

}  // namespace ziggurat

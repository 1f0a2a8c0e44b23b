// What the page shows, as JSON texts. docs/page.md is their documentation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "scheduler/engine.h"
#include "scheduler/metrics.h"
#include "server/page/history.h"
#include "server/readiness.h"

namespace ziggurat {

/// What the page says of the model; its shape is the engine's to say.
struct PageModel {
  std::string name;
  std::string architecture;
  std::string backend;
  std::string default_compression;
};

/// Made from the snapshot that the engine publishes and from totals of the metrics: nothing is
/// asked of the engine's thread. A thread of its own adds a point to the history every second.
///
/// Any thread; Attach and Detach once each.
class PageData {
 public:
  /// Requests in one State, running ones first; those beyond are only counted.
  static constexpr size_t kMaxRequests = 512;

  /// `metrics` must outlive it.
  explicit PageData(const Metrics* metrics);
  ~PageData();

  /// From now on there is an engine to show, until Detach returns.
  void Attach(const Engine* engine, PageModel model);
  void Detach();

  /// The daemon, its cache, its requests without their layers in full, the latest points of the
  /// history. Made once for all who ask about the same snapshot and second.
  std::shared_ptr<const std::string> State(Readiness readiness);
  /// All points of the history.
  std::string HistoryText() const;
  /// One request with its layers in full. Absent where no such request is in the latest snapshot.
  std::optional<std::string> Request(RequestId id) const;

 private:
  std::shared_ptr<const EngineSnapshot> Snapshot() const;
  std::string MakeState(Readiness readiness, const EngineSnapshot* snapshot) const;
  void AddPointsEverySecond();

  const Metrics* const metrics_;
  const absl::Time started_at_ = absl::Now();
  History history_;

  mutable std::mutex engine_mutex_;
  const Engine* engine_ = nullptr;  ///< guarded by engine_mutex_
  PageModel model_;                 ///< guarded by engine_mutex_

  std::mutex state_mutex_;  ///< guards what follows: the latest State, and what it was made from
  std::shared_ptr<const std::string> state_;
  std::shared_ptr<const EngineSnapshot> state_snapshot_;
  uint64_t state_point_ = 0;
  Readiness state_readiness_ = Readiness::kLoading;

  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;
  bool stopping_ = false;
  std::thread sampler_;
};

}  // namespace ziggurat

#include "server/page/page_data.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "server/json_text.h"
#include "server/message_json.h"
#include "server/messages.h"
#include "server/version.h"

namespace ziggurat {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kPointInterval = std::chrono::seconds(1);
// A page that asks every second misses none, though it may be late by some.
constexpr size_t kLatestPoints = 10;

Json ModelJson(const PageModel& model, const Engine& engine) {
  const ModelShape& shape = engine.model_shape();
  return {{"name", model.name},
          {"architecture", model.architecture},
          {"num_layers", shape.num_layers},
          {"num_kv_heads", shape.num_kv_heads},
          {"head_dim", shape.head_dim},
          {"max_context_tokens", shape.max_context_tokens},
          {"dtype", std::string(ElementTypeName(shape.element))},
          {"backend", model.backend},
          {"default_compression", model.default_compression},
          {"max_running", engine.options().max_running},
          {"max_queue", engine.options().max_queue}};
}

}  // namespace

PageData::PageData(const Metrics* metrics)
    : metrics_(metrics), sampler_([this] { AddPointsEverySecond(); }) {}

PageData::~PageData() {
  {
    std::lock_guard lock(stop_mutex_);
    stopping_ = true;
  }
  stop_changed_.notify_all();
  sampler_.join();
}

void PageData::AddPointsEverySecond() {
  auto next = std::chrono::steady_clock::now();
  std::unique_lock lock(stop_mutex_);
  while (!stopping_) {
    history_.Add(metrics_->Totals(), absl::Now(), std::chrono::steady_clock::now());
    // After a long pause of the machine it goes on from now.
    next += kPointInterval;
    if (const auto now = std::chrono::steady_clock::now(); next < now) next = now + kPointInterval;
    stop_changed_.wait_until(lock, next, [this] { return stopping_; });
  }
}

void PageData::Attach(const Engine* engine, PageModel model) {
  std::lock_guard lock(engine_mutex_);
  engine_ = engine;
  model_ = std::move(model);
}

void PageData::Detach() {
  std::lock_guard lock(engine_mutex_);
  engine_ = nullptr;
}

std::shared_ptr<const EngineSnapshot> PageData::Snapshot() const {
  std::lock_guard lock(engine_mutex_);
  return engine_ == nullptr ? nullptr : engine_->Snapshot();
}

std::shared_ptr<const std::string> PageData::State(Readiness readiness) {
  std::lock_guard lock(state_mutex_);
  std::shared_ptr<const EngineSnapshot> snapshot = Snapshot();
  const uint64_t point = history_.newest();
  if (state_ == nullptr || snapshot != state_snapshot_ || point != state_point_ ||
      readiness != state_readiness_) {
    state_ = std::make_shared<const std::string>(MakeState(readiness, snapshot.get()));
    state_snapshot_ = std::move(snapshot);
    state_point_ = point;
    state_readiness_ = readiness;
  }
  return state_;
}

std::string PageData::MakeState(Readiness readiness, const EngineSnapshot* snapshot) const {
  const MetricTotals totals = metrics_->Totals();
  Json finished = Json::object();
  for (const auto& [reason, count] : totals.finished) {
    finished[reason] = static_cast<uint64_t>(count);
  }
  Json state = {{"state", ReadinessName(readiness)},
                {"version", VersionText()},
                {"started_at_ms", absl::ToUnixMillis(started_at_)},
                {"time_ms", absl::ToUnixMillis(absl::Now())},
                {"finished", std::move(finished)},
                {"refused", static_cast<uint64_t>(totals.refused)},
                {"latest", history_.ToJson(kLatestPoints)},
                {"model", nullptr},
                {"cache", nullptr},
                {"cache_at_ms", nullptr},
                {"requests_left_out", 0}};
  if (snapshot == nullptr) return JsonText(state);
  {
    std::lock_guard lock(engine_mutex_);
    if (engine_ != nullptr) state["model"] = ModelJson(model_, *engine_);
  }
  state["cache"] = CacheJson(ToMessage(*snapshot, CacheDetail::kRequestTotals, kMaxRequests));
  state["cache_at_ms"] = absl::ToUnixMillis(snapshot->made_at);
  state["requests_left_out"] =
      snapshot->requests.size() - std::min(snapshot->requests.size(), kMaxRequests);
  return JsonText(state);
}

std::string PageData::HistoryText() const { return JsonText(history_.ToJson(History::kPoints)); }

std::optional<std::string> PageData::Request(RequestId id) const {
  const std::shared_ptr<const EngineSnapshot> snapshot = Snapshot();
  if (snapshot == nullptr) return std::nullopt;
  const auto request = std::find_if(snapshot->requests.begin(), snapshot->requests.end(),
                                    [id](const RequestSnapshot& one) { return one.id == id; });
  if (request == snapshot->requests.end()) return std::nullopt;
  const Json answer = {{"cache_at_ms", absl::ToUnixMillis(snapshot->made_at)},
                       {"block_bytes", snapshot->block_bytes},
                       {"request", MessageJson(ToMessage(*request, CacheDetail::kRequestsInFull))}};
  return JsonText(answer);
}

}  // namespace ziggurat

#include "model/cuda/step_graphs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "spdlog/spdlog.h"

namespace ziggurat::cuda {
namespace {

/// Buckets that are remembered without a graph: more than ever come up, but requests decide it.
constexpr size_t kMostRemembered = 4096;

void Remember(const StepBucket& bucket, std::set<StepBucket>* in) {
  if (in->size() >= kMostRemembered) in->clear();
  in->insert(bucket);
}

}  // namespace

absl::Status StepGraphs::Run(const StepBucket& bucket, Stream& stream,
                             absl::FunctionRef<absl::Status()> work) {
  auto place = graphs_.find(bucket);
  if (place == graphs_.end()) {
    if (without_.contains(bucket)) return work();
    // At first as it comes: libraries load what they need, which a recording would not bear.
    if (!seen_.contains(bucket)) {
      absl::Status status = work();
      if (status.ok()) Remember(bucket, &seen_);
      return status;
    }
    std::unique_ptr<Graph> graph = Record(stream, work);
    if (graph == nullptr) {
      Remember(bucket, &without_);
      return work();
    }
    Keep(bucket, std::move(graph));
    place = graphs_.find(bucket);
  }
  place->second.launched = ++launches_;
  place->second.graph->Launch(stream);
  return absl::OkStatus();
}

void StepGraphs::Clear() {
  graphs_.clear();
  without_.clear();
}

std::unique_ptr<Graph> StepGraphs::Record(Stream& stream, absl::FunctionRef<absl::Status()> work) {
  absl::Status status;
  auto graph = record_(stream, [&] { status = work(); });
  status.Update(graph.status());
  if (status.ok()) return *std::move(graph);
  if (!std::exchange(has_warned_, true)) {
    spdlog::warn("some decode steps go without a graph, which is slower: {}",
                 std::string(status.message()));
  }
  return nullptr;
}

void StepGraphs::Keep(const StepBucket& bucket, std::unique_ptr<Graph> graph) {
  if (graphs_.size() >= most_) {
    const auto by_launch = [](const auto& a, const auto& b) {
      return a.second.launched < b.second.launched;
    };
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(), by_launch);
    seen_.erase(oldest->first);  // else two that displace each other would be recorded every time
    graphs_.erase(oldest);
    without_.clear();  // the memory of one that goes may serve another
  }
  graphs_[bucket].graph = std::move(graph);
}

}  // namespace ziggurat::cuda

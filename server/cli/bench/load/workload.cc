#include "server/cli/bench/load/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ziggurat::bench {

Workload::Workload(WorkloadOptions options)
    : options_(std::move(options)), random_(options_.seed) {}

std::optional<size_t> Workload::size() const {
  if (options_.trace.empty()) return options_.requests;
  return std::min(options_.requests.value_or(options_.trace.size()), options_.trace.size());
}

std::optional<PlannedRequest> Workload::Next() {
  if (const std::optional<size_t> end = size(); end && next_ >= *end) return std::nullopt;
  PlannedRequest request{.index = next_, .arrival_seconds = NextArrival(), .lengths = {}};
  const Lengths wanted = NextLengths();
  request.lengths = FitIntoContext(wanted, options_.limits);
  request.cut = request.lengths != wanted;
  ++next_;
  return request;
}

double Workload::NextArrival() {
  if (!options_.trace.empty()) return options_.time_scale * options_.trace[next_].arrival_seconds;
  if (options_.rate > 0) clock_ += random_.Exponential(1 / options_.rate);
  return clock_;
}

Lengths Workload::NextLengths() {
  if (options_.trace.empty()) {
    const int64_t input = options_.input.Draw(random_);
    return {.input = input, .output = options_.output.Draw(random_)};
  }
  const auto scaled = [&](int64_t tokens) {
    const double length = options_.length_scale * static_cast<double>(tokens);
    return std::max<int64_t>(1, std::llround(std::min(length, 1e9)));
  };
  const Lengths& lengths = options_.trace[next_].lengths;
  return {.input = scaled(lengths.input), .output = scaled(lengths.output)};
}

PromptMaker::PromptMaker(int64_t vocab_size, const std::vector<int32_t>& left_out, uint64_t seed)
    : seed_(seed) {
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (std::find(left_out.begin(), left_out.end(), id) == left_out.end()) ids_.push_back(id);
  }
  if (ids_.empty()) ids_.push_back(0);
}

std::vector<int32_t> PromptMaker::Make(size_t index, int64_t tokens) const {
  Random random(seed_, index);
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  const auto last = static_cast<int64_t>(ids_.size()) - 1;
  for (int32_t& id : prompt) id = ids_[static_cast<size_t>(random.UniformInt(0, last))];
  return prompt;
}

}  // namespace ziggurat::bench

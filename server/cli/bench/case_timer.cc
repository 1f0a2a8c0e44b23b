#include "server/cli/bench/case_timer.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace ziggurat::bench {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What `parts` would be of so many steps.
StepParts Scaled(StepParts parts, int steps) {
  if (parts.steps == 0) return parts;
  const double scale = static_cast<double>(steps) / static_cast<double>(parts.steps);
  parts.steps = static_cast<uint64_t>(steps);
  for (double* part : {&parts.device.steps, &parts.device.edits, &parts.model, &parts.attention,
                       &parts.sample, &parts.schedule}) {
    *part *= scale;
  }
  return parts;
}

}  // namespace

StepParts operator-(const StepParts& a, const StepParts& b) {
  return {a.steps - b.steps,   {a.device.steps - b.device.steps, a.device.edits - b.device.edits},
          a.model - b.model,   a.attention - b.attention,
          a.sample - b.sample, a.schedule - b.schedule};
}

StepParts PartsSoFar(const Metrics& metrics) {
  StepParts parts;
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    if (family.name == "ziggurat_device_decode_seconds_total") {
      parts.device.steps = family.metric.front().counter.value;
    }
    if (family.name == "ziggurat_device_edit_seconds_total") {
      parts.device.edits = family.metric.front().counter.value;
    }
    if (family.name != "ziggurat_step_seconds") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      const std::string& part = metric.label.front().value;
      double* const sums[] = {&parts.model, &parts.attention, &parts.sample, &parts.schedule};
      const char* const names[] = {"model", "attention", "sample", "schedule"};
      for (int i = 0; i < 4; ++i) {
        if (part == names[i]) *sums[i] = metric.histogram.sample_sum;
      }
      parts.steps = metric.histogram.sample_count;  // each part is observed once in every step
    }
  }
  return parts;
}

absl::Status CaseProgress::Add(const EngineOutput& output) {
  int& tokens = tokens_[output.id];
  if (tokens == 0 && !output.tokens.empty()) {
    ++started_;
    last_ = output.id;
  }
  tokens += static_cast<int>(output.tokens.size());
  if (output.result == nullptr) return absl::OkStatus();
  ++(tokens == 0 ? never_started_ : finished_);
  const EngineResult& result = *output.result;
  return result.reason == FinishReason::kError ? result.status : absl::OkStatus();
}

CaseTimer::CaseTimer(const EngineCase& which, const Metrics& metrics)
    : case_(which),
      metrics_(metrics),
      progress_(which.batch),
      at_start_(PartsSoFar(metrics)),
      start_(Clock::now()) {}

void CaseTimer::Add(const std::vector<EngineOutput>& outputs) {
  for (const EngineOutput& output : outputs) {
    failure_.Update(progress_.Add(output));
    if (output.result != nullptr) figures_.cache_bytes += output.result->cache.bytes;
  }
  Advance();
}

void CaseTimer::Advance() {
  switch (stage_) {
    case Stage::kPrefill:
      if (progress_.all_started() || (case_.fills_pool && progress_.is_pool_full())) {
        EndPrefill();
      } else if (case_.decode_tokens > 0 && progress_.any_finished()) {
        failure_.Update(absl::ResourceExhaustedError(absl::StrCat(
            "of ", case_.batch, " requests of ", case_.context, " tokens only ",
            progress_.started(),
            " had begun when the first one ended; a larger pool or a smaller batch helps")));
      }
      break;
    case Stage::kFirstStep:
      // What a step took is noted after its tokens have gone out: that of prefill is now.
      if (progress_.steps() > 0) BeginDecode(Stage::kTimed);
      break;
    case Stage::kTimed:
      if (progress_.steps() - first_step_ >= case_.decode_tokens || progress_.any_finished()) {
        EndTimedSteps();
      }
      break;
    case Stage::kToTheEnd:
    case Stage::kDone:
      break;
  }
  if (stage_ != Stage::kToTheEnd) return;
  if (!progress_.any_finished()) WatchSteadySteps();
  if (progress_.all_finished()) EndAllSteps();
}

void CaseTimer::EndPrefill() {
  figures_.prefill_seconds = SecondsSince(start_);
  figures_.batch = progress_.started();
  if (case_.after_start) {
    BeginDecode(Stage::kToTheEnd);
    case_.after_start();
  } else {
    stage_ = case_.decode_tokens == 0 ? Stage::kDone : Stage::kFirstStep;
  }
}

void CaseTimer::BeginDecode(Stage stage) {
  stage_ = stage;
  decode_start_ = Clock::now();
  decode_from_ = PartsSoFar(metrics_);
  first_step_ = progress_.steps();
}

void CaseTimer::EndTimedSteps() {
  stage_ = Stage::kDone;
  figures_.decode_seconds = SecondsSince(decode_start_);
  figures_.steps = progress_.steps() - first_step_;
  // The engine may be some steps ahead of what its clients have been sent.
  figures_.decode_parts = Scaled(PartsSoFar(metrics_) - decode_from_, figures_.steps);
}

void CaseTimer::WatchSteadySteps() {
  const int step = progress_.steps();
  // What a step took is noted after its tokens have gone out: that of prefill and of the first step
  // are by now.
  if (steady_from_.steps == 0) {
    if (step > 2) steady_from_ = PartsSoFar(metrics_);
  } else if (steady_.steps == 0 && step >= case_.decode_tokens - case_.decode_tokens / 8) {
    steady_ = PartsSoFar(metrics_) - steady_from_;
  }
}

void CaseTimer::EndAllSteps() {
  figures_.decode_seconds = SecondsSince(decode_start_);
  figures_.steps = progress_.steps();
  const StepParts all = PartsSoFar(metrics_) - decode_from_;
  figures_.decode_parts = Scaled(steady_.steps == 0 ? all : steady_, all.steps);
  const StepParts& steps = figures_.decode_parts;
  // A difference of two times that a busy machine may have made longer.
  figures_.edges_seconds = std::max(0.0, all.schedule + all.sample - steps.schedule - steps.sample);
}

}  // namespace ziggurat::bench

#include "server/cli/bench/load/load_summary.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat::bench {
namespace {

// Messages of the daemon hold numbers that differ from request to request. Told apart are reasons,
// by code and the beginning of the message.
std::string Reason(const RequestRecord& record) {
  constexpr size_t kEnough = 120;
  std::string message;
  for (const char c : record.error.substr(0, record.error.find('\n'))) {
    if (!absl::ascii_isdigit(c)) {
      message += c;
    } else if (!absl::EndsWith(message, "N")) {
      message += 'N';
    }
  }
  if (message.size() > kEnough) {
    message = message.substr(0, CharacterBegin(message, kEnough)) + "...";
  }
  return absl::StrCat(record.error_code, message.empty() ? "" : ": ", message);
}

class Summarizer {
 public:
  explicit Summarizer(const Goals& goals) : goals_(goals) {}

  void Add(const RequestRecord& record) {
    ++summary_.made;
    summary_.cut += record.plan.cut ? 1 : 0;
    summary_.duration_seconds = std::max(summary_.duration_seconds, record.end_seconds);
    if (record.outcome != Outcome::kCancelled) {
      send_delay_.push_back(record.sent_seconds - record.due_seconds);
    }
    switch (record.outcome) {
      case Outcome::kDone:
        ++summary_.done;
        AddDone(record);
        return;
      case Outcome::kRefused:
        ++summary_.refused;
        ++reasons_[Reason(record)];
        break;
      case Outcome::kFailed:
        ++summary_.failed;
        ++reasons_[Reason(record)];
        break;
      case Outcome::kCancelled:
        ++summary_.cancelled;
        break;
    }
    summary_.lost_output_tokens += record.arrived_tokens();
  }

  LoadSummary Finish(const CacheSamples& cache) {
    LoadSummary& s = summary_;
    s.ttft = Describe(std::move(ttft_));
    s.itl = Describe(std::move(itl_));
    s.mean_itl = Describe(std::move(mean_itl_));
    s.p99_itl = Describe(std::move(p99_itl_));
    s.worst_itl = Describe(std::move(worst_itl_));
    s.end_to_end = Describe(std::move(end_to_end_));
    s.queue = Describe(std::move(queue_));
    s.send_delay = Describe(std::move(send_delay_));
    s.compression_ratio = Describe(std::move(compression_ratio_));
    s.requests_per_second = PerSecond(s.done);
    s.input_tokens_per_second = PerSecond(s.input_tokens);
    s.output_tokens_per_second = PerSecond(s.output_tokens);
    for (Goodput* good : {&s.good_by_mean, &s.good_by_p99, &s.good_by_worst}) {
      const int64_t judged = s.made - s.cancelled;
      if (judged > 0) {
        good->share = static_cast<double>(good->requests) / static_cast<double>(judged);
      }
      good->requests_per_second = PerSecond(good->requests);
      good->output_tokens_per_second = PerSecond(good->output_tokens);
    }
    AddCache(cache);
    AddReasons();
    return std::move(s);
  }

 private:
  void AddDone(const RequestRecord& record) {
    if (summary_.compression.empty()) summary_.compression = record.compression;
    summary_.input_tokens += record.prompt_tokens;
    summary_.output_tokens += record.output_tokens;
    summary_.short_answers += record.output_tokens != record.plan.lengths.output ? 1 : 0;
    end_to_end_.push_back(record.end_to_end());
    queue_.push_back(record.queue_seconds);
    if (record.compression_ratio > 0) compression_ratio_.push_back(record.compression_ratio);
    if (record.arrivals.empty()) return;
    for (const TokenArrival& arrival : record.arrivals)
      summary_.merged_tokens += arrival.tokens - 1;
    ttft_.push_back(record.ttft());
    std::vector<double> gaps = record.InterTokenGaps();
    if (gaps.empty()) return AddGoodput(record, 0, 0, 0);
    itl_.insert(itl_.end(), gaps.begin(), gaps.end());
    std::sort(gaps.begin(), gaps.end());
    mean_itl_.push_back(record.MeanGap());
    p99_itl_.push_back(Percentile(gaps, 99));
    worst_itl_.push_back(gaps.back());
    AddGoodput(record, mean_itl_.back(), p99_itl_.back(), worst_itl_.back());
  }

  void AddGoodput(const RequestRecord& record, double mean, double p99, double worst) {
    if (record.ttft() > goals_.ttft_seconds) return;
    for (const auto& [itl, good] :
         {std::pair{mean, &summary_.good_by_mean}, std::pair{p99, &summary_.good_by_p99},
          std::pair{worst, &summary_.good_by_worst}}) {
      if (itl > goals_.itl_seconds) continue;
      ++good->requests;
      good->output_tokens += record.output_tokens;
    }
  }

  void AddCache(const CacheSamples& cache) {
    std::vector<double> used, committed, running, waiting;
    for (const CacheSample& sample : cache.samples) {
      if (sample.seconds > summary_.duration_seconds) continue;
      used.push_back(static_cast<double>(sample.used_blocks));
      committed.push_back(static_cast<double>(sample.used_blocks + sample.reserved_blocks));
      running.push_back(sample.running);
      waiting.push_back(sample.waiting);
    }
    summary_.used_blocks = Describe(std::move(used));
    summary_.committed_blocks = Describe(std::move(committed));
    summary_.running = Describe(std::move(running));
    summary_.waiting = Describe(std::move(waiting));
  }

  void AddReasons() {
    auto& reasons = summary_.reasons;
    reasons.assign(reasons_.begin(), reasons_.end());
    std::stable_sort(reasons.begin(), reasons.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    for (; reasons.size() > kMostReasons; reasons.pop_back()) {
      summary_.other_reasons += reasons.back().second;
    }
  }

  double PerSecond(int64_t count) const {
    if (summary_.duration_seconds <= 0) return 0;
    return static_cast<double>(count) / summary_.duration_seconds;
  }

  const Goals goals_;
  LoadSummary summary_;
  std::map<std::string, int64_t> reasons_;
  std::vector<double> ttft_, itl_, mean_itl_, p99_itl_, worst_itl_, end_to_end_, queue_,
      send_delay_, compression_ratio_;
};

}  // namespace

LoadSummary Summarize(const std::vector<RequestRecord>& records, const CacheSamples& cache,
                      const Goals& goals) {
  Summarizer summarizer(goals);
  for (const RequestRecord& record : records) summarizer.Add(record);
  return summarizer.Finish(cache);
}

}  // namespace ziggurat::bench

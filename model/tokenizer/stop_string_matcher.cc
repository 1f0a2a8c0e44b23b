#include "model/tokenizer/stop_string_matcher.h"

#include <algorithm>
#include <utility>

namespace ziggurat {

StopStringMatcher::StopStringMatcher(std::vector<std::string> stop_strings)
    : stop_strings_(std::move(stop_strings)) {
  stop_strings_.erase(std::remove(stop_strings_.begin(), stop_strings_.end(), std::string()),
                      stop_strings_.end());
}

std::optional<StopStringMatcher::Match> StopStringMatcher::FindMatch() const {
  std::optional<Match> first;
  const auto end_of = [&](const Match& match) {
    return match.begin + stop_strings_[match.index].size();
  };
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const Match match{held_.find(stop_strings_[i]), i};
    if (match.begin == std::string::npos) continue;
    const bool is_earlier = !first.has_value() || end_of(match) < end_of(*first) ||
                            (end_of(match) == end_of(*first) && match.begin < first->begin);
    if (is_earlier) first = match;
  }
  return first;
}

size_t StopStringMatcher::FirstPartialMatch() const {
  const std::string_view held = held_;
  size_t first = held.size();
  for (const std::string& stop : stop_strings_) {
    const size_t longest = std::min(held.size(), stop.size() - 1);
    for (size_t length = longest; length > 0; --length) {
      if (held.substr(held.size() - length) == std::string_view(stop).substr(0, length)) {
        first = std::min(first, held.size() - length);
        break;
      }
    }
  }
  return first;
}

std::string StopStringMatcher::Push(std::string_view increment) {
  if (stopped()) return "";
  held_.append(increment);
  if (const std::optional<Match> match = FindMatch()) {
    matched_ = match->index;
    held_.resize(match->begin);
    return std::exchange(held_, std::string());
  }
  const size_t partial = FirstPartialMatch();
  std::string text = held_.substr(0, partial);
  held_.erase(0, partial);
  return text;
}

std::string StopStringMatcher::Finish() { return std::exchange(held_, std::string()); }

std::optional<std::string_view> StopStringMatcher::matched() const {
  if (!matched_.has_value()) return std::nullopt;
  return stop_strings_[*matched_];
}

}  // namespace ziggurat

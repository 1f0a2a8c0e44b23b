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
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const size_t begin = held_.find(stop_strings_[i]);
    if (begin == std::string::npos) continue;
    const bool is_earlier =
        !first.has_value() || begin < first->begin ||
        (begin == first->begin && stop_strings_[i].size() < stop_strings_[first->index].size());
    if (is_earlier) first = Match{begin, i};
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

std::string StopStringMatcher::StopAt(const Match& match) {
  matched_ = match.index;
  std::string text = held_.substr(0, match.begin);
  held_.clear();
  return text;
}

std::string StopStringMatcher::Push(std::string_view increment) {
  if (stopped()) return "";
  held_.append(increment);
  const size_t partial = FirstPartialMatch();
  const std::optional<Match> match = FindMatch();
  // A stop string that began earlier may still be completed: then it, not this one, ends the text.
  if (match.has_value() && match->begin <= partial) return StopAt(*match);
  std::string text = held_.substr(0, partial);
  held_.erase(0, partial);
  return text;
}

std::string StopStringMatcher::Finish() {
  if (stopped()) return "";
  if (const std::optional<Match> match = FindMatch()) return StopAt(*match);
  return std::exchange(held_, std::string());
}

std::optional<std::string_view> StopStringMatcher::matched() const {
  if (!matched_.has_value()) return std::nullopt;
  return stop_strings_[*matched_];
}

}  // namespace ziggurat

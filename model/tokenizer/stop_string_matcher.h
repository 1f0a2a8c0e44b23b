// Ends a text at a stop string, however it is spread over the increments of a stream.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ziggurat {

/// Passes a text on up to the first stop string in it, and holds back whatever could be the
/// beginning of one, so that no part of a stop string is ever given away. What comes out does not
/// depend on how the text was cut into increments.
///
/// The stop string that is complete first wins, so that nothing need be waited for; of two that end
/// at the same place, the longer. Not thread-safe; one per sequence.
class StopStringMatcher {
 public:
  /// Empty stop strings are ignored.
  explicit StopStringMatcher(std::vector<std::string> stop_strings);

  /// Takes the next increment and returns the text that is certain to come before any stop string.
  /// Empty once stopped.
  std::string Push(std::string_view increment);

  /// The text has ended: returns what was held back.
  std::string Finish();

  /// Whether a stop string was met: generation can end.
  bool stopped() const { return matched_.has_value(); }
  /// The stop string that ended the text.
  std::optional<std::string_view> matched() const;

 private:
  struct Match {
    size_t begin = 0;  ///< offset in held_
    size_t index = 0;  ///< of the stop string
  };

  /// The stop string in held_ that ends first.
  std::optional<Match> FindMatch() const;
  /// Offset in held_ of the first place where a stop string begins whose end is yet to come;
  /// held_.size() if there is none.
  size_t FirstPartialMatch() const;

  std::vector<std::string> stop_strings_;
  std::string held_;  ///< taken, but not yet given on
  std::optional<size_t> matched_;
};

}  // namespace ziggurat

// Whether an answer is right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ziggurat::eval {

struct Judgement {
  /// The text is the answer, but for white space at its ends.
  bool exact = false;
  /// Parts of the answer between commas, and those of them that are parts of the text.
  int items = 0;
  int items_right = 0;
  /// Digits of the answer, without one that the first token may have brought, and those of them
  /// that stand in the same place of the same item.
  int later_digits = 0;
  int later_digits_right = 0;
};

/// Judges what was generated. `held_back` is the end of the prompt that was not sent, and that the
/// text must begin with; without it, a digit at the beginning of the answer does not count among
/// the later ones, since the first token comes out of the prefill, which no policy compresses.
Judgement Judge(std::string_view text, std::string_view answer, std::string_view held_back);

/// Of an answer to which nothing came: everything wrong.
Judgement JudgeFailure(std::string_view answer, std::string_view held_back);

/// The parts of `answer` between commas, without white space at their ends.
std::vector<std::string_view> Items(std::string_view answer);

}  // namespace ziggurat::eval

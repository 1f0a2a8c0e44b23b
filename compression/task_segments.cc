#include "compression/task_segments.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace ziggurat {
namespace {

constexpr int kWordsOfASentence = 3;
constexpr int kWordsOfALabel = 3;
constexpr size_t kStemBytes = 6;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
char ToLower(char c) { return IsUpper(c) ? static_cast<char>(c + ('a' - 'A')) : c; }
bool IsIn(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }
bool IsBetween(char c, int low, int high) {
  const int byte = static_cast<uint8_t>(c);
  return byte >= low && byte <= high;
}
bool IsContinuation(char c) { return IsBetween(c, 0x80, 0xBF); }

int CountWords(const TaskSegment& segment) {
  return static_cast<int>(std::count_if(segment.begin(), segment.end(),
                                        [](const TaskToken& t) { return t.mark == 0; }));
}

/// Words outside the classifier's vocabulary differ by these endings only.
std::string_view WordClass(std::string_view word, bool name) {
  if (name) {
    return "N";
  }
  if (word.size() > 3 && IsLower(word[0])) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kEndings = {
        {{"ed", "Xed"}, {"ing", "Xing"}, {"ly", "Xly"}, {"est", "Xest"}, {"s", "Xs"}}};
    for (const auto& [ending, name_of_class] : kEndings) {
      if (word.ends_with(ending)) {
        return name_of_class;
      }
    }
  }
  return "X";
}

/// Numbers, identifiers and blanks are words of their own.
std::string_view Shape(std::string_view word) {
  if (IsIn('_', word)) {
    return word.find_first_not_of('_') == std::string_view::npos ? "_" : "_a";
  }
  if (std::any_of(word.begin(), word.end(), IsDigit)) {
    return std::all_of(word.begin(), word.end(), IsDigit) ? "0" : "0a";
  }
  return word;
}

TaskToken MakeWord(std::string_view word, bool name) {
  return {.hash = TaskHash(word),
          .class_hash = TaskHash(WordClass(word, name)),
          .stem_hash = word.size() > kStemBytes ? TaskHash(word.substr(0, kStemBytes)) : 0,
          .single_letter = word.size() == 1 && IsLower(word[0])};
}

TaskToken MakeMark(char mark) {
  const uint32_t hash = TaskHash({&mark, 1});
  return {.hash = hash, .class_hash = hash, .mark = mark};
}

class Cutter {
 public:
  explicit Cutter(std::string_view text) : text_(text) {}

  std::vector<TaskSegment> Cut() {
    while (at_ < text_.size()) {
      if (!(TakeOption() || TakeBoundary() || TakeWord() || TakeWide() || TakeMark())) {
        ++at_;
      }
    }
    Close();
    return std::move(segments_);
  }

 private:
  char Peek(size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool Ends(size_t ahead) const { return at_ + ahead >= text_.size(); }

  void Close() {
    if (!current_.empty()) {
      segments_.push_back(std::move(current_));
      current_.clear();
    }
  }

  /// A line such as "B. text" or "(C) text" of capital letters A to H.
  bool TakeOption() {
    if (at_ > 0 && text_[at_ - 1] != '\n') {
      return false;
    }
    size_t i = 0;
    while (Peek(i) == ' ' || Peek(i) == '\t') {
      ++i;
    }
    i += Peek(i) == '(' ? 1 : 0;
    if (!IsBetween(Peek(i), 'A', 'H') || !IsIn(Peek(i + 1), ").") || Ends(i + 2) ||
        !IsIn(Peek(i + 2), " \t")) {
      return false;
    }
    Close();
    segments_.emplace_back();
    at_ = std::min(text_.find('\n', at_), text_.size());
    return true;
  }

  bool TakeBoundary() {
    const char c = Peek(0);
    if (c == '\x01') {
      Close();
      segments_.emplace_back();
      ++at_;
      return true;
    }
    if ((c == '<' && Peek(1) == '|') || (c == '|' && Peek(1) == '>')) {
      Close();
      at_ += 2;
      return true;
    }
    if (c == '<' || c == '>' || c == '\n') {
      Close();
      ++at_;
      return true;
    }
    return c == '[' && (TakeInstructionTag("[inst]") || TakeInstructionTag("[/inst]"));
  }

  /// The end of an instruction is where the assistant answers.
  bool TakeInstructionTag(std::string_view tag) {
    for (size_t i = 0; i < tag.size(); ++i) {
      if (ToLower(Peek(i)) != tag[i]) {
        return false;
      }
    }
    Close();
    if (tag[1] == '/') {
      segments_.push_back({MakeWord("assistant", /*name=*/false)});
    }
    at_ += tag.size();
    return true;
  }

  /// Letters of ASCII and of two-byte UTF-8, digits and underscores.
  bool TakeWord() {
    const bool name = !current_.empty() && IsUpper(Peek(0));
    word_.clear();
    while (!Ends(0)) {
      const char c = ToLower(Peek(0));
      if (IsLower(c) || IsDigit(c) || c == '_') {
        word_ += c;
        ++at_;
      } else if (IsBetween(c, 0xC3, 0xDF) && IsContinuation(Peek(1))) {
        const char second = Peek(1);
        const bool capital = c == '\xC3' && IsBetween(second, 0x80, 0x9E) && second != '\x97';
        word_ += c;
        word_ += capital ? static_cast<char>(second + 0x20) : second;
        at_ += 2;
      } else {
        break;
      }
    }
    if (word_.empty()) {
      return false;
    }
    current_.push_back(MakeWord(Shape(word_), name));
    return true;
  }

  /// Characters of three and four bytes: every one is a word, but for punctuation.
  bool TakeWide() {
    const char lead = Peek(0);
    size_t size = 0;
    if (IsBetween(lead, 0xE0, 0xEF)) {
      size = 3;
    } else if (IsBetween(lead, 0xF0, 0xF4)) {
      size = 4;
    } else {
      return false;
    }
    for (size_t i = 1; i < size; ++i) {
      if (!IsContinuation(Peek(i))) {
        return false;
      }
    }
    const std::string_view character = text_.substr(at_, size);
    at_ += size;
    if (character == "\u3002" || character == "\uFF01") {  // full stop, exclamation mark
      Close();
    } else if (character == "\uFF1F") {  // question mark
      current_.push_back(MakeMark('?'));
      Close();
    } else if (character == "\uFF1A") {  // colon
      current_.push_back(MakeMark(':'));
    } else if (lead != '\xE2' && character != "\uFF0C" && character != "\u3001") {  // commas
      current_.push_back(MakeWord(character, /*name=*/false));
    }
    return true;
  }

  bool TakeMark() {
    const char c = Peek(0);
    if (c == '`' && Peek(1) == '`' && Peek(2) == '`') {
      current_.push_back(MakeMark('`'));
      while (Peek(0) == '`') {
        ++at_;
      }
      return true;
    }
    if ((c == '-' || c == '=') && Peek(1) == '>') {
      current_.push_back(MakeMark('>'));
      at_ += 2;
      return true;
    }
    if (!IsIn(c, "?:|.!") || c == '\0') {
      return false;
    }
    TakePunctuation(c);
    ++at_;
    return true;
  }

  void TakePunctuation(char c) {
    if (c == '?') {
      if (IsQuestionMark()) {
        current_.push_back(MakeMark('?'));
        Close();
      }
    } else if (c == '!') {
      Close();
    } else if (c == '.') {
      const bool initial = !current_.empty() && current_.back().single_letter;
      if ((Ends(1) || IsIn(Peek(1), " \t\r\n\"')")) && !initial) {
        Close();
      }
    } else {
      current_.push_back(MakeMark(c));
      if (c == ':' && CountWords(current_) <= kWordsOfALabel) {
        Close();
      }
    }
  }

  /// Not the operator of C, nor part of an address.
  bool IsQuestionMark() const {
    if (!Ends(1) && !IsIn(Peek(1), " \t\r\n\"')]*_<?!")) {
      return false;
    }
    const bool spaced = at_ > 0 && text_[at_ - 1] == ' ' && Peek(1) == ' ';
    return !spaced || IsUpper(Peek(2));
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string word_;
  TaskSegment current_;
  std::vector<TaskSegment> segments_;
};

}  // namespace

std::vector<TaskSegment> CutTaskSegments(std::string_view text) { return Cutter(text).Cut(); }

bool IsTaskSentence(const TaskSegment& segment) {
  return CountWords(segment) >= kWordsOfASentence ||
         std::any_of(segment.begin(), segment.end(),
                     [](const TaskToken& token) { return token.mark == '?'; });
}

}  // namespace ziggurat

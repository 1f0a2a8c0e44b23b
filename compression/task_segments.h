// Cuts the text that the task classifier looks at into segments: sentences, lines, and labels such
// as "Question:". Its twin in Python is training/task_features.py; both must agree.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ziggurat {

/// A word, or one of the marks ? : | ` (a fence of code) > (an arrow).
struct TaskToken {
  uint32_t hash = 0;        ///< Of the word in lower case, with numbers and identifiers as classes.
  uint32_t class_hash = 0;  ///< Of what stands for the word where the classifier does not know it.
  uint32_t stem_hash = 0;   ///< Of its first bytes; 0 for a short word.
  char mark = 0;            ///< The mark; 0 for a word.
  bool single_letter = false;
};

/// An option of a multiple-choice question ("B. ...") is a segment without tokens: nothing of its
/// text counts.
using TaskSegment = std::vector<TaskToken>;

std::vector<TaskSegment> CutTaskSegments(std::string_view text);

/// Ends with a question mark or has at least three words. What is no sentence is a label, a cue
/// ("Summary:") or a scrap.
bool IsTaskSentence(const TaskSegment& segment);

/// FNV-1a.
constexpr uint32_t TaskHash(std::string_view bytes) {
  uint32_t hash = 0x811C9DC5;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193;
  }
  return hash;
}

}  // namespace ziggurat

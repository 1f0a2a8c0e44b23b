// What a single segment of a prompt asks for: softmax regression over its words, pairs and triples
// of words. Its twin in Python is training/segment_model.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compression/task_segments.h"

namespace ziggurat {

/// How likely it is that a segment asks for either; the rest is that it asks for nothing, as the
/// sentences of a document do.
struct TaskRequest {
  double localization = 0;
  double aggregation = 0;
  double Any() const { return localization + aggregation; }
};

/// Keeps its buffers between calls; one thread at a time.
class TaskRequestModel {
 public:
  /// `segment` must not be empty. Of a long one only both ends are looked at.
  TaskRequest Ask(std::span<const TaskToken> segment);

 private:
  void AddTokens(std::span<const TaskToken> tokens);
  void AddSequences(bool question);
  void Add(uint32_t key);
  TaskRequest Softmax();

  std::vector<int> found_;        ///< Indices of the features in the table of weights.
  std::vector<uint32_t> hashes_;  ///< Of the words, with the edges of the segment.
};

}  // namespace ziggurat

#include "compression/task_request_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace ziggurat {
namespace {

#include "compression/task_classifier_weights.inc"

constexpr uint32_t kBase = 91;
constexpr int kEntryCharacters = 6;
constexpr int kKeyBits = 26;
constexpr int kBucketBits = 11;

/// The table, decoded. Keys ascend; bucket b begins at first_of_bucket[b] and has the keys whose
/// highest kBucketBits are b.
struct Weights {
  std::array<uint32_t, kTableEntries> keys;
  std::array<int8_t, kTableEntries> localization;
  std::array<int8_t, kTableEntries> aggregation;
  std::array<uint16_t, (1 << kBucketBits) + 1> first_of_bucket;
};

/// The digit that a character of the table stands for: printable ASCII without " ? and backslash.
constexpr uint32_t DigitOf(char c) {
  const int skipped = (c > '"' ? 1 : 0) + (c > '?' ? 1 : 0) + (c > '\\' ? 1 : 0);
  return static_cast<uint32_t>(c - '!' - skipped);
}

consteval Weights DecodeTable() {
  Weights weights = {};
  for (int i = 0; i < kTableEntries; ++i) {
    const char* entry = kTable + i * kEntryCharacters;
    for (int digit = 0; digit < 4; ++digit) {
      weights.keys[i] = weights.keys[i] * kBase + DigitOf(entry[digit]);
    }
    weights.localization[i] = static_cast<int8_t>(static_cast<int>(DigitOf(entry[4])) - kMaxWeight);
    weights.aggregation[i] = static_cast<int8_t>(static_cast<int>(DigitOf(entry[5])) - kMaxWeight);
    ++weights.first_of_bucket[(weights.keys[i] >> (kKeyBits - kBucketBits)) + 1];
  }
  for (int bucket = 0; bucket < 1 << kBucketBits; ++bucket) {
    weights.first_of_bucket[bucket + 1] += weights.first_of_bucket[bucket];
  }
  return weights;
}

static_assert(sizeof(kTable) == kTableEntries * kEntryCharacters + 1);
constexpr Weights kWeights = DecodeTable();

/// The index of a key in the table, or -1.
int Find(uint32_t key) {
  const uint32_t bucket = key >> (kKeyBits - kBucketBits);
  for (int i = kWeights.first_of_bucket[bucket]; i < kWeights.first_of_bucket[bucket + 1]; ++i) {
    if (kWeights.keys[i] == key) {
      return i;
    }
  }
  return -1;
}

constexpr size_t kLongSegment = 64;

enum FeatureKind : uint32_t { kWord = 1, kPair, kTriple, kStem, kLength, kQuestionWord };

/// As training/task_features.py has it.
uint32_t FeatureKey(FeatureKind kind, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
  uint32_t h = kind * 0x9E3779B1U;
  h = (h ^ a) * 0x85EBCA6BU;
  h ^= h >> 15;
  h = (h ^ b) * 0xC2B2AE35U;
  h ^= h >> 13;
  h = (h ^ c) * 0x27D4EB2FU;
  h ^= h >> 16;
  return h & ((1U << kKeyBits) - 1);
}

}  // namespace

TaskRequest TaskRequestModel::Ask(std::span<const TaskToken> segment) {
  found_.clear();
  hashes_.assign(1, TaskHash("^"));
  if (segment.size() > kLongSegment) {
    AddTokens(segment.first(kLongSegment / 2));
    AddTokens(segment.last(kLongSegment / 2));
  } else {
    AddTokens(segment);
  }
  hashes_.push_back(TaskHash("$"));
  AddSequences(segment.back().mark == '?');
  return Softmax();
}

void TaskRequestModel::Add(uint32_t key) {
  if (const int index = Find(key); index >= 0) {
    found_.push_back(index);
  }
}

void TaskRequestModel::AddTokens(std::span<const TaskToken> tokens) {
  for (const TaskToken& token : tokens) {
    const bool known = token.mark != 0 || Find(FeatureKey(kWord, token.hash)) >= 0;
    hashes_.push_back(known ? token.hash : token.class_hash);
    Add(FeatureKey(kWord, hashes_.back()));
    if (token.stem_hash != 0) {
      Add(FeatureKey(kStem, token.stem_hash));
    }
  }
}

void TaskRequestModel::AddSequences(bool question) {
  const size_t words = hashes_.size() - 2;
  Add(FeatureKey(kLength, words < 3 ? 1 : words < 6 ? 2 : words < 12 ? 3 : words < 24 ? 4 : 5));
  if (question) {
    Add(FeatureKey(kQuestionWord, hashes_[1]));
  }
  for (size_t i = 0; i + 1 < hashes_.size(); ++i) {
    Add(FeatureKey(kPair, hashes_[i], hashes_[i + 1]));
    if (i + 2 < hashes_.size()) {
      Add(FeatureKey(kTriple, hashes_[i], hashes_[i + 1], hashes_[i + 2]));
    }
  }
}

/// A feature counts once. Asking for nothing has the score 0.
TaskRequest TaskRequestModel::Softmax() {
  std::ranges::sort(found_);
  const auto repeated = std::ranges::unique(found_);
  found_.erase(repeated.begin(), repeated.end());
  int localization = kSegmentBias[0];
  int aggregation = kSegmentBias[1];
  for (const int index : found_) {
    localization += kWeights.localization[index];
    aggregation += kWeights.aggregation[index];
  }
  const double l = localization / kWeightUnits;
  const double a = aggregation / kWeightUnits;
  const double top = std::max({0.0, l, a});
  const double total = std::exp(-top) + std::exp(l - top) + std::exp(a - top);
  return {std::exp(l - top) / total, std::exp(a - top) / total};
}

}  // namespace ziggurat

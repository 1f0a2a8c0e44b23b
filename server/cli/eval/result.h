// One finished request of an evaluation, as results.jsonl keeps it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat::eval {

/// What was asked of whom. Results with equal keys may stand for each other.
struct ResultKey {
  std::string model = {};
  std::string dtype = {};
  std::string policy = {};  ///< canonical
  std::string tasks = {};   ///< hash of the task file
  int64_t index = 0;        ///< of the question in that file, from 0
  int max_tokens = 0;
  int held_back = 0;  ///< tokens at the end of the prompt that were not sent
  std::vector<std::string> stop = {};

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads defaulted comparisons
  friend auto operator<=>(const ResultKey&, const ResultKey&) = default;
};

/// What the request held in the cache at its end, over all layers.
struct CacheFigures {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t full_blocks = 0;
  uint64_t lazy_layers = 0;
  /// KV pairs per KV head, summed over layers.
  uint64_t evicted_tokens = 0;
  uint64_t merged_tokens = 0;
  uint64_t distant_tokens = 0;
  uint64_t quantized_tokens = 0;
  uint64_t distant_attentions = 0;
  uint64_t skipped_attentions = 0;
};

/// Each under the name that it has in files.
struct NamedCacheFigure {
  const char* name;
  uint64_t CacheFigures::*figure;
};
constexpr NamedCacheFigure kCacheFigures[] = {
    {"bytes", &CacheFigures::bytes},
    {"blocks", &CacheFigures::blocks},
    {"full_blocks", &CacheFigures::full_blocks},
    {"lazy_layers", &CacheFigures::lazy_layers},
    {"evicted_tokens", &CacheFigures::evicted_tokens},
    {"merged_tokens", &CacheFigures::merged_tokens},
    {"distant_tokens", &CacheFigures::distant_tokens},
    {"quantized_tokens", &CacheFigures::quantized_tokens},
    {"distant_attentions", &CacheFigures::distant_attentions},
    {"skipped_attentions", &CacheFigures::skipped_attentions}};

struct Result {
  ResultKey key = {};
  std::string file = {};     ///< name of the task file, for people
  std::string version = {};  ///< of the daemon
  bool recall_asked = false;

  std::string error_code = {};  ///< "RESOURCE_EXHAUSTED", ...; empty: it was answered
  std::string error = {};       ///< the daemon's message

  std::string text = {};
  int prompt_tokens = 0;
  int completion_tokens = 0;
  double queue_seconds = 0;
  double first_token_seconds = 0;
  double total_seconds = 0;
  CacheFigures cache = {};
  /// For each layer; NaN where the daemon gave none. Empty: it gave none at all.
  std::vector<double> attention_recall = {};

  bool failed() const { return !error_code.empty(); }
};

/// Copies usage, timings and cache report.
void FillFrom(const v1::GenerateResult& message, Result& result);

/// One line without its end.
std::string ToJsonLine(const Result& result);
/// INVALID_ARGUMENT where the line is not one of ToJsonLine.
absl::StatusOr<Result> ParseResult(std::string_view line);

}  // namespace ziggurat::eval

// The next tokens, drawn on the device: of every sequence a small record comes to the host, in
// place of its logits.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/cuda/device.h"
#include "attention/cuda/sampling.h"
#include "model/cuda/memory_part.h"
#include "model/cuda/seen_lists.h"
#include "model/model_runner.h"

namespace ziggurat::cuda {

class TokenDraws {
 public:
  static std::vector<MemoryPart> Parts(int rows, int vocab_size);
  /// `stream` outlives it. RESOURCE_EXHAUSTED names the part.
  static absl::StatusOr<std::unique_ptr<TokenDraws>> Create(Stream* stream, int rows,
                                                            int vocab_size);

  /// Asks the stream for a token of each row of `logits` [rows, vocab_size], which are scratch
  /// then. A sequence whose lists (penalties, forbidden tokens) find no room is drawn by the host:
  /// it waits for its logits.
  ///   sequences  DecodeInput::sequence of each draw
  ///   row_of     the row of each
  void Ask(absl::Span<const TokenDraw> draws, absl::Span<const uint64_t> sequences,
           absl::Span<const int> row_of, float* logits);
  /// Once the stream has come to the end of what Ask asked.
  void Fetch(absl::Span<const TokenDraw> draws, absl::Span<const int> row_of, SampledToken* tokens);

 private:
  TokenDraws(Stream* stream, int rows, int vocab_size)
      : stream_(stream), rows_(rows), vocab_size_(vocab_size) {}

  /// False where there is no room for them.
  bool FillLists(const TokenDraw& draw, uint64_t sequence, SamplingRequest* request);
  void DrawOnHost(size_t draw, const TokenDraw& of, const float* logits);

  Stream* stream_;
  int rows_, vocab_size_;
  std::unique_ptr<SeenLists> seen_;
  // On the device, and what goes there and comes from there.
  DeviceMemory requests_, pinned_requests_;
  DeviceMemory forbidden_, pinned_forbidden_;
  DeviceMemory records_, pinned_records_;
  size_t num_forbidden_ = 0;                              ///< of all draws of a step
  std::vector<std::pair<size_t, SampledToken>> of_host_;  ///< by draw
};

}  // namespace ziggurat::cuda

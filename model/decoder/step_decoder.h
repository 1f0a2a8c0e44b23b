// Decode steps of a device that has memory of its own: its tables of the cache stay there from step
// to step, which the functions of an AttentionBackend cannot say.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/model_runner.h"

namespace ziggurat {

class StepDecoder {
 public:
  virtual ~StepDecoder() = default;

  /// Before anything else, on whichever thread calls.
  virtual void UseDevice() = 0;
  /// As ModelRunner has them.
  virtual absl::StatusOr<std::byte*> AllocatePool(size_t num_blocks, size_t block_bytes) = 0;
  virtual size_t FreePoolBytes() = 0;
  virtual void AttachPool(PoolView pool) = 0;
  /// As ModelRunner has them; the inputs have been checked.
  virtual absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) = 0;
  virtual absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs,
                                    absl::Span<const TokenDraw> draws, SampledToken* tokens) = 0;
  virtual void PrepareDecode(absl::Span<const DecodeInput> inputs) = 0;
  virtual absl::Status AwaitTokens() = 0;
  virtual double busy_seconds() const = 0;  ///< DeviceSeconds::steps

  /// The device's memory for logits, between steps: [rows(), vocab_size] f32.
  virtual float* logits() = 0;
  virtual int rows() const = 0;
};

}  // namespace ziggurat

// The decoder on a GPU: prompts go through CudaBackend, steps through CudaSteps.
#pragma once

#include <memory>
#include <utility>

#include "model/cuda/cuda_steps.h"
#include "model/decoder/llama_runner.h"

namespace ziggurat::cuda {

class CudaLlamaRunner final : public LlamaRunner {
 public:
  CudaLlamaRunner(const ModelConfig& config, const DecoderOptions& options, int device,
                  LlamaParts parts, std::unique_ptr<CudaSteps> steps)
      : LlamaRunner(config, options, std::move(parts)), device_(device), steps_(std::move(steps)) {}

  absl::StatusOr<std::byte*> AllocatePool(size_t num_blocks, size_t block_bytes) override;
  absl::StatusOr<size_t> FreePoolBytes() override;
  void AttachPool(PoolView pool) override;
  bool is_asynchronous() const override { return true; }

  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits) override;
  absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs, absl::Span<const TokenDraw> draws,
                            SampledToken* tokens) override;
  absl::Status AwaitTokens() override { return steps_->AwaitTokens(); }
  void PrepareDecode(absl::Span<const DecodeInput> inputs) override;

  DeviceSeconds device_seconds() const override {
    return {steps_->busy_seconds(), backend_->edit_seconds()};
  }

 private:
  void PrepareThread() const override { BindDevice(device_); }
  int most_head_rows() const override { return steps_->rows(); }
  absl::Status RunHead(const void* normed, int rows, float* logits) override;

  const int device_;
  const std::unique_ptr<CudaSteps> steps_;
};

}  // namespace ziggurat::cuda

#include "model/cuda/cuda_llama_runner.h"

namespace ziggurat::cuda {

absl::StatusOr<std::byte*> CudaLlamaRunner::AllocatePool(size_t num_blocks, size_t block_bytes) {
  PrepareThread();
  return steps_->AllocatePool(num_blocks, block_bytes);
}

absl::StatusOr<size_t> CudaLlamaRunner::FreePoolBytes() {
  PrepareThread();
  return steps_->FreePoolBytes();
}

void CudaLlamaRunner::AttachPool(PoolView pool) {
  LlamaRunner::AttachPool(pool);
  steps_->AttachPool(pool);
}

absl::Status CudaLlamaRunner::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  if (inputs.empty()) return absl::OkStatus();
  if (absl::Status status = CheckInputs(inputs); !status.ok()) return status;
  PrepareThread();
  return steps_->Decode(inputs, logits);
}

absl::Status CudaLlamaRunner::DecodeTokens(absl::Span<const DecodeInput> inputs,
                                           absl::Span<const TokenDraw> draws,
                                           SampledToken* tokens) {
  if (inputs.empty()) return absl::OkStatus();
  absl::Status status = CheckInputs(inputs);
  ForgetAhead();
  if (!status.ok()) return status;
  PrepareThread();
  return steps_->DecodeTokens(inputs, draws, tokens);
}

void CudaLlamaRunner::PrepareDecode(absl::Span<const DecodeInput> inputs) {
  CheckAhead(inputs);
  steps_->PrepareDecode(inputs);
}

absl::Status CudaLlamaRunner::RunHead(const void* normed, int rows, float* logits) {
  float* const computed = steps_->logits();
  absl::Status status = weights_->head().Run(normed, rows, ElementType::kF32, computed);
  if (!status.ok()) return status;
  backend_->Download(computed, sizeof(float) * rows * shape().vocab_size, logits);
  return absl::OkStatus();
}

}  // namespace ziggurat::cuda

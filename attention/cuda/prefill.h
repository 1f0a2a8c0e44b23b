// Causal attention of prompts in the contiguous workspace, and the log-sum-exp that statistics
// want: on tensor cores in bf16, as plain kernels for everything. A library's flash attention goes
// before both where there is one (docs/gpu.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/device_views.h"
#include "attention/cuda/stream.h"
#include "attention/prompt_tensors.h"

namespace ziggurat::cuda {

/// As DistantPrefill (attention/backend.h), on the device.
struct DeviceDistant {
  int32_t sinks = 0;
  int32_t recent = 0;
  float skip = 2;
  const uint8_t* borrows = nullptr;  ///< [num_kv_heads]
  const void* low_q = nullptr;
  const void* low_k = nullptr;
  unsigned long long* counts = nullptr;  ///< attended, skipped; added to
  float* shares = nullptr;               ///< DistantScratchBytes of scratch memory
};

///   offsets  [num_sequences + 1] first token of each
void LaunchPrefillAttention(const AttentionShape& shape, const PromptTensors& tensors,
                            const int32_t* offsets, int num_sequences, int num_tokens,
                            cudaStream_t stream);

/// The same on tensor cores, which LaunchPrefillAttention leaves to it where RunsOnTensorCores.
void LaunchTensorPrefill(const AttentionShape& shape, const PromptTensors& tensors,
                         const int32_t* offsets, int num_sequences, int num_tokens,
                         cudaStream_t stream);

size_t DistantScratchBytes(const AttentionShape& shape, int n);
/// One prompt of n tokens.
void LaunchPrefillDistantAttention(const AttentionShape& shape, const PromptTensors& tensors, int n,
                                   const DeviceDistant& distant, cudaStream_t stream);
/// The same on tensor cores, as LaunchTensorPrefill.
void LaunchTensorPrefillDistant(const AttentionShape& shape, const PromptTensors& tensors, int n,
                                const DeviceDistant& distant, cudaStream_t stream);

}  // namespace ziggurat::cuda

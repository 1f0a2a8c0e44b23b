// What stands between the GEMMs. Each function is the one of the same name of PromptBackend
// (attention/backend.h); pointers are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/device_views.h"
#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

void LaunchRmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                   ElementType element, void* out, cudaStream_t stream);

void LaunchSplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                          const float* cos, const float* sin, int rows, ElementType out_element,
                          void* q, void* k, void* v, cudaStream_t stream);

void LaunchSwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out,
                  cudaStream_t stream);

/// Row i of `out` is that of token ids[i].   table [vocabulary, width];   out [count, width] f32
void LaunchEmbedTokens(ElementType element, const void* table, const int32_t* ids, int count,
                       int width, float* out, cudaStream_t stream);

/// The rotary embedding's cosines and sines, from angles in double.
///   positions  [count];  inverse_frequencies  [width];  cos, sin  [count, width]
void LaunchFillAngles(const int32_t* positions, int count, const float* inverse_frequencies,
                      int width, float* cos, float* sin, cudaStream_t stream);
/// positions first, first + 1, ...
void LaunchFillAngles(int first, int count, const float* inverse_frequencies, int width, float* cos,
                      float* sin, cudaStream_t stream);

}  // namespace ziggurat::cuda

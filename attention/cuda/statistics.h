// What policies ask of a layer, and what they choose by it. Each function is the one of the same
// name of a backend (attention/backend.h), where it says what is computed; pointers are the
// device's, and results stay there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/device_views.h"
#include "attention/cuda/stream.h"
#include "attention/prompt_tensors.h"

namespace ziggurat::cuda {

size_t ColumnSumsScratchBytes();
/// Adds up in an order that depends on the sizes alone.
///   sums  [KV heads, or query heads where `query_heads`, stride]
void LaunchColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                      bool query_heads, float* sums, size_t stride, void* scratch,
                      cudaStream_t stream);

/// The same on tensor cores, which LaunchColumnSums leaves to it where RunsOnTensorCores.
void LaunchTensorColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin, int end,
                            bool query_heads, float* sums, size_t stride, void* scratch,
                            cudaStream_t stream);

size_t WindowScoresScratchBytes(const AttentionShape& shape, int n, int window);
///   tail.rows is the window;   scores  [num_kv_heads, n - window]
void LaunchWindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                        WindowPooling pooling, float* scores, void* scratch, cudaStream_t stream);

void LaunchSelectBest(const float* scores, size_t stride, int num_heads, int candidates, int best,
                      int32_t* indices, cudaStream_t stream);

/// These two are of BackendMemory (attention/backend_memory.h).
void LaunchKeepSelected(const int32_t* best_of, size_t stride, int heads, int best,
                        int first_recent, int recent, int32_t* kept, cudaStream_t stream);
void LaunchComplement(const int32_t* chosen, int heads, int count, int n, int32_t* rest,
                      cudaStream_t stream);

size_t SelectWindowsScratchBytes(int candidates, int review);
///   count  one number: how many indices there are
void LaunchSelectWindows(const float* scores, int num_heads, int candidates, int review, int best,
                         int budget, int32_t* indices, int32_t* count, void* scratch,
                         cudaStream_t stream);

size_t CosineSumScratchBytes(int rows);
///   sum  one number
void LaunchCosineSum(const float* a, const float* b, int rows, int width, double* sum,
                     void* scratch, cudaStream_t stream);

void LaunchAccumulateScores(const AttentionShape& shape, const DeviceCache& cache,
                            const DeviceItems& items, const float* q, const float* lse,
                            cudaStream_t stream);

size_t SlotMassScratchBytes(const AttentionShape& shape);
///   mass  one number
void LaunchSlotMass(const AttentionShape& shape, const DeviceCache& cache, uint32_t segment,
                    int begin, int end, const float* q, const float* lse, double* mass,
                    void* scratch, cudaStream_t stream);

/// out = factor * (values[0] + values[1] + ...), always in the same order.
void LaunchOrderedSum(const double* values, int count, double factor, double* out,
                      cudaStream_t stream);

}  // namespace ziggurat::cuda

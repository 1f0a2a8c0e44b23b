// What a step changes in the table.
#include "attention/cuda/platform.h"
#include "attention/cuda/step_table.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr unsigned kThreads = 256;

/// A fixed number of threads, whatever the number of patches.
__global__ void __launch_bounds__(kThreads)
    ApplyPatches(const TablePatch* patches, const uint32_t* count, uint32_t capacity,
                 uint32_t* table) {
  const uint32_t live = *count < capacity ? *count : capacity;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < live; i += gridDim.x * kThreads) {
    table[patches[i].word] = patches[i].value;
  }
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchApplyPatches(const TablePatch* patches, const uint32_t* count, int capacity,
                        uint32_t* table, cudaStream_t stream) {
  const unsigned blocks = (static_cast<unsigned>(capacity) + kThreads - 1) / kThreads;
  Launch(ApplyPatches,
         dim3{blocks < 1    ? 1
              : blocks > 64 ? 64
                            : blocks},
         dim3{kThreads}, 0, stream, patches, count, static_cast<uint32_t>(capacity), table);
}

}  // namespace ziggurat::cuda

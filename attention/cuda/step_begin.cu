// What a step changes in the table: patches from the host, and what goes on by itself.
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

/// A thread for each item of each layer. The first kernel of a step: what is before it is a copy,
/// for the end of which it waits anyway.
__global__ void __launch_bounds__(kThreads)
    BeginStep(StepItems of, const int32_t* positions, const int32_t* steps, uint32_t* table) {
  LetNextBegin();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int row = i % of.capacity;
  if (i >= of.layers * of.capacity || row >= static_cast<int>(table[of.count])) return;
  reinterpret_cast<DeviceItem*>(table + of.items)[i].position = positions[row];
  const DeviceGrowth growth = reinterpret_cast<const DeviceGrowth*>(table + of.growths)[i];
  if (growth.num_slots == 0) return;
  const int slot = growth.base_slot + steps[row] - growth.as_of;
  table[growth.slot] = static_cast<uint32_t>(slot);
  table[growth.num_slots] =
      static_cast<uint32_t>(slot >= growth.base_slots ? slot + 1 : growth.base_slots);
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

void LaunchBeginStep(const StepItems& items, const int32_t* positions, const int32_t* steps,
                     uint32_t* table, cudaStream_t stream) {
  const unsigned threads = static_cast<unsigned>(items.layers) * items.capacity;
  if (threads == 0) return;
  Launch(BeginStep, dim3{(threads + kThreads - 1) / kThreads}, dim3{kThreads}, 0, stream, items,
         positions, steps, table);
}

}  // namespace ziggurat::cuda

#include <algorithm>
#include <chrono>

#include "attention/cuda/device.h"

namespace ziggurat::cuda {

absl::StatusOr<double> MeasureCopyBandwidth(size_t bytes) {
  constexpr int kRuns = 5, kCopies = 10;  // of a run: waiting takes time too
  auto from = DeviceMemory::Allocate(MemoryKind::kDevice, bytes, "the source of a copy");
  if (!from.ok()) return from.status();
  auto to = DeviceMemory::Allocate(MemoryKind::kDevice, bytes, "the target of a copy");
  if (!to.ok()) return to.status();
  const std::unique_ptr<Stream> stream = Stream::Create();
  double best = 0;
  for (int run = 0; run <= kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i) stream->Copy(to->data(), from->data(), bytes);
    stream->Synchronize();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (run == 0) continue;  // it warms up
    best = std::max(best, 2.0 * static_cast<double>(bytes) * kCopies / seconds.count());
  }
  return best;
}

}  // namespace ziggurat::cuda

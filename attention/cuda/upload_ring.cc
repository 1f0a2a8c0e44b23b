#include "attention/cuda/upload_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "block_manager/check.h"

namespace ziggurat::cuda {

namespace {
constexpr size_t kAlignment = 64;
}  // namespace

absl::StatusOr<std::unique_ptr<UploadRing>> UploadRing::Create(Stream* stream, size_t bytes) {
  const size_t rounded = (bytes + 2 * kAlignment - 1) / (2 * kAlignment) * 2 * kAlignment;
  auto pinned = DeviceMemory::Allocate(MemoryKind::kPinned, rounded, "upload ring");
  if (!pinned.ok()) return pinned.status();
  auto device = DeviceMemory::Allocate(MemoryKind::kDevice, rounded, "upload ring");
  if (!device.ok()) return device.status();
  return std::unique_ptr<UploadRing>(
      new UploadRing(stream, *std::move(pinned), *std::move(device)));
}

UploadRing::UploadRing(Stream* stream, DeviceMemory pinned, DeviceMemory device)
    : stream_(stream),
      pinned_(std::move(pinned)),
      device_(std::move(device)),
      half_bytes_(pinned_.bytes() / 2) {
  for (auto& event : left_) event = Event::Create();
}

size_t UploadRing::Stage(const void* host, size_t bytes) {
  CheckThat(bytes <= half_bytes_, "an upload larger than half the ring");
  if (next_ + bytes > (half_ + 1) * half_bytes_) {
    left_[half_]->Record(*stream_);
    half_ = 1 - half_;
    next_ = half_ * half_bytes_;
    left_[half_]->Wait();
  }
  const size_t at = next_;
  if (bytes > 0) std::memcpy(pinned_.data() + at, host, bytes);
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

void* UploadRing::Place(const void* host, size_t bytes) {
  const size_t at = Stage(host, bytes);
  if (bytes > 0) stream_->Copy(device_.data() + at, pinned_.data() + at, bytes);
  return device_.data() + at;
}

void UploadRing::Upload(const void* host, size_t bytes, void* to) {
  for (size_t done = 0; done < bytes; done += half_bytes_) {
    const size_t piece = std::min(half_bytes_, bytes - done);
    const size_t at = Stage(static_cast<const std::byte*>(host) + done, piece);
    stream_->Copy(static_cast<std::byte*>(to) + done, pinned_.data() + at, piece);
  }
}

}  // namespace ziggurat::cuda

// Small things that the host hands to kernels: indices, tables, tokens.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/cuda/device.h"

namespace ziggurat::cuda {

/// Pinned memory that a stream copies from, used round and round. What is uploaded may change at
/// once; a half is written again only when the stream has copied it. Nothing waits in between.
class UploadRing {
 public:
  /// `bytes`: of the ring; half of it is the most that one call of Place takes.
  static absl::StatusOr<std::unique_ptr<UploadRing>> Create(Stream* stream, size_t bytes);

  /// The most that one call of Place takes.
  size_t most_bytes() const { return half_bytes_; }

  /// A copy on the device, aligned to 64 bytes, for what is asked of the stream next: it stands
  /// until half a ring more has been placed.
  void* Place(const void* host, size_t bytes);
  template <typename T>
  T* Place(absl::Span<const T> values) {
    return static_cast<T*>(Place(values.data(), values.size() * sizeof(T)));
  }
  /// To a place of the caller's, of any size.
  void Upload(const void* host, size_t bytes, void* to);

 private:
  UploadRing(Stream* stream, DeviceMemory pinned, DeviceMemory device);
  /// Where in the ring the bytes are to be, now copied to its pinned side.
  size_t Stage(const void* host, size_t bytes);

  Stream* stream_;
  DeviceMemory pinned_, device_;
  size_t half_bytes_;
  size_t next_ = 0;
  int half_ = 0;
  std::unique_ptr<Event> left_[2];  ///< when the stream is through with each half
};

}  // namespace ziggurat::cuda

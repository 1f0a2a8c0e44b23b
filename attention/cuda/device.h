// Memory, streams, events and graphs of a GPU, with two implementations: CUDA's runtime
// (device_runtime.cc), and the emulator's (tests/cuda_emulator/device_emulator.cc), where memory is
// the host's.
//
// Where memory cannot be had, or there is no device, a status says so. Every other error of the
// runtime means that the device is lost to this process: it is logged with the call's name, and the
// process aborts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cuda/stream.h"

namespace ziggurat::cuda {

struct DeviceFacts {
  std::string name;         ///< "NVIDIA H200", ...
  int multiprocessors = 0;  ///< decode attention runs some warps on each
};

/// Makes `ordinal` the device of the calling thread. FAILED_PRECONDITION where there is no GPU or
/// no driver, or the kernels were not compiled for that card, NOT_FOUND where there are fewer
/// devices.
absl::StatusOr<DeviceFacts> OpenDevice(int ordinal);
/// Again, on another thread.
void BindDevice(int ordinal);
size_t FreeDeviceBytes();

/// Bytes per second, read and written together, of copies of so many bytes within the memory of the
/// calling thread's device: the best of a few runs. RESOURCE_EXHAUSTED.
absl::StatusOr<double> MeasureCopyBandwidth(size_t bytes);

enum class MemoryKind : uint8_t {
  kDevice,
  kPinned,  ///< the host's, which the device reads and writes itself
};

/// Memory that is freed with its owner; zeros at first.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// RESOURCE_EXHAUSTED names `what` and the bytes.
  static absl::StatusOr<DeviceMemory> Allocate(MemoryKind kind, size_t bytes, const char* what);

  std::byte* data() const { return data_.get(); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    MemoryKind kind;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_{nullptr, {MemoryKind::kDevice}};
  size_t bytes_ = 0;
};

/// What is asked of a stream happens in order, some time after the call.
class Stream {
 public:
  static std::unique_ptr<Stream> Create();
  virtual ~Stream() = default;

  cudaStream_t get() const { return stream_; }
  /// Either side may be the device's memory or the host's. Pinned memory must stay as it is until
  /// the stream has come so far; so must other memory, for which the call itself may wait.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyRows(void* to, size_t to_stride, const void* from, size_t from_stride,
                        size_t row_bytes, size_t rows) = 0;
  virtual void Zero(void* memory, size_t bytes) = 0;
  /// Waits for everything so far.
  virtual void Synchronize() = 0;

 protected:
  cudaStream_t stream_ = nullptr;
};

/// A point in a stream.
class Event {
 public:
  static std::unique_ptr<Event> Create();
  virtual ~Event() = default;
  /// While a graph is recorded: in every launch of it.
  virtual void Record(const Stream& stream) = 0;
  /// Waits until the stream has come to where it was recorded last; at once where it never was.
  virtual void Wait() = 0;
  /// Whether Wait() would not wait.
  virtual bool IsReached() const = 0;
  /// Of two points that the stream has come to.
  virtual double SecondsSince(const Event& earlier) const = 0;
};

/// Launches and copies that are recorded once and repeated, with the arguments that they had.
class Graph {
 public:
  /// Records what `work` asks of `stream`, none of which happens now. INTERNAL where something of
  /// it cannot be recorded, RESOURCE_EXHAUSTED where the driver has no memory for it.
  static absl::StatusOr<std::unique_ptr<Graph>> Record(Stream& stream,
                                                       const std::function<void()>& work);
  virtual ~Graph() = default;
  virtual void Launch(const Stream& stream) = 0;
};

}  // namespace ziggurat::cuda

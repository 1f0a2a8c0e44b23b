// attention/cuda/device.h for the emulator: one device, whose memory is the host's.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "attention/cuda/device.h"
#include "block_manager/check.h"
#include "tests/cuda_emulator/stream_queue.h"

namespace ziggurat::cuda {
namespace {

constexpr size_t kAlignment = 256;  // as cudaMalloc's
constexpr size_t kTotalBytes = size_t{1} << 32;

class EmulatedStream final : public Stream {
 public:
  EmulatedStream() { stream_ = &queue_; }
  void Copy(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;  // of nothing, perhaps
    Ask([=] { std::memmove(to, from, bytes); });
  }
  void CopyRows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                size_t rows) override {
    Ask([=] {
      for (size_t row = 0; row < rows; ++row) {
        std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                    static_cast<const std::byte*>(from) + row * from_stride, row_bytes);
      }
    });
  }
  void Zero(void* memory, size_t bytes) override {
    Ask([=] { std::memset(memory, 0, bytes); });
  }
  void Synchronize() override { queue_.Synchronize(); }

 private:
  void Ask(std::function<void()> what) {
    cuda_emulator::Submit(&queue_, {.other = std::move(what)});
  }

  CUstream_st queue_;
};

class EmulatedEvent final : public Event {
 public:
  void Record(const Stream& stream) override {
    stream_ = stream.get();
    is_reached_ = false;
    const auto note_time = [this] {
      recorded_ = std::chrono::steady_clock::now();
      is_reached_ = true;
    };
    cuda_emulator::Submit(stream_, {.other = note_time, .event = this});
  }
  void Wait() override {
    if (stream_ != nullptr) stream_->Await(this);
  }
  bool IsReached() const override { return is_reached_; }
  double SecondsSince(const Event& earlier) const override {
    const auto& from = static_cast<const EmulatedEvent&>(earlier);
    // CUDA refuses it.
    CheckThat(stream_ != nullptr && is_reached_ && from.stream_ != nullptr && from.is_reached_,
              "the time between two points that a stream has not come to");
    const auto since = recorded_ - from.recorded_;
    return std::chrono::duration<double>(since).count();
  }

 private:
  cudaStream_t stream_ = nullptr;  ///< that it was recorded on last
  std::chrono::steady_clock::time_point recorded_;
  bool is_reached_ = true;  ///< where it was never recorded too
};

class EmulatedGraph final : public Graph {
 public:
  EmulatedGraph(Stream& stream, const std::function<void()>& work) {
    stream.get()->BeginRecording();
    work();
    steps_ = stream.get()->EndRecording();
  }
  void Launch(const Stream& stream) override {
    for (const auto& step : steps_) cuda_emulator::Submit(stream.get(), step);
  }

 private:
  std::vector<cuda_emulator::Work> steps_;
};

}  // namespace

absl::StatusOr<DeviceFacts> OpenDevice(int ordinal) {
  if (ordinal != 0) return absl::NotFoundError("the emulator is one device, cuda:0");
  // Few processors, so that the shares of decode attention are more than one chunk.
  return DeviceFacts{"the emulator", 1};
}

void BindDevice(int) {}
size_t FreeDeviceBytes() { return kTotalBytes; }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(MemoryKind kind, size_t bytes,
                                                    const char* what) {
  if (bytes > FreeDeviceBytes()) {
    return absl::ResourceExhaustedError(std::string("the emulator has no memory for the ") + what);
  }
  DeviceMemory memory;
  // Zero without being touched: most of a large part is never used. What calloc gave stands in
  // front of what is given out.
  void* const given = std::calloc(1, bytes + 2 * kAlignment);
  void* aligned = static_cast<std::byte*>(given) + sizeof(void*);
  size_t room = bytes + 2 * kAlignment - sizeof(void*);
  auto* const data = static_cast<std::byte*>(std::align(kAlignment, bytes, aligned, room));
  std::memcpy(data - sizeof(void*), &given, sizeof(void*));
  memory.data_ = std::unique_ptr<std::byte, Free>(data, Free{kind});
  memory.bytes_ = bytes;
  return memory;
}

void DeviceMemory::Free::operator()(std::byte* memory) const {
  cuda_emulator::SynchronizeAll();
  void* given = nullptr;
  std::memcpy(&given, memory - sizeof(void*), sizeof(void*));
  std::free(given);
}

std::unique_ptr<Stream> Stream::Create() { return std::make_unique<EmulatedStream>(); }
std::unique_ptr<Event> Event::Create() { return std::make_unique<EmulatedEvent>(); }
absl::StatusOr<std::unique_ptr<Graph>> Graph::Record(Stream& stream,
                                                     const std::function<void()>& work) {
  return std::make_unique<EmulatedGraph>(stream, work);
}

}  // namespace ziggurat::cuda

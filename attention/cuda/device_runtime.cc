// device.h on CUDA's runtime.
#include <cuda_runtime_api.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "attention/cuda/device.h"
#include "attention/cuda/kernel_image.h"
#include "attention/cuda/runtime_check.h"

namespace ziggurat::cuda {
namespace {

class RuntimeStream final : public Stream {
 public:
  RuntimeStream() {
    CheckCall(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~RuntimeStream() override { CheckCall(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }

  void Copy(void* to, const void* from, size_t bytes) override {
    CheckCall(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  void CopyRows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                size_t rows) override {
    CheckCall(cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, rows,
                                cudaMemcpyDefault, stream_),
              "cudaMemcpy2DAsync");
  }
  void Zero(void* memory, size_t bytes) override {
    CheckCall(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync");
  }
  void Synchronize() override {
    CheckCall(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
};

class RuntimeEvent final : public Event {
 public:
  RuntimeEvent() { CheckCall(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~RuntimeEvent() override { CheckCall(cudaEventDestroy(event_), "cudaEventDestroy"); }
  void Record(const Stream& stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CheckCall(cudaStreamIsCapturing(stream.get(), &status), "cudaStreamIsCapturing");
    const bool in_graph = status != cudaStreamCaptureStatusNone;
    CheckCall(cudaEventRecordWithFlags(event_, stream.get(),
                                       in_graph ? cudaEventRecordExternal : cudaEventRecordDefault),
              "cudaEventRecord");
  }
  void Wait() override { CheckCall(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  bool IsReached() const override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaErrorNotReady) CheckCall(error, "cudaEventQuery");
    return error == cudaSuccess;
  }
  double SecondsSince(const Event& earlier) const override {
    float milliseconds = 0;
    CheckCall(cudaEventElapsedTime(&milliseconds, static_cast<const RuntimeEvent&>(earlier).event_,
                                   event_),
              "cudaEventElapsedTime");
    return 1e-3 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class RuntimeGraph final : public Graph {
 public:
  explicit RuntimeGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~RuntimeGraph() override { CheckCall(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy"); }
  void Launch(const Stream& stream) override {
    CheckCall(cudaGraphLaunch(graph_, stream.get()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_;
};

}  // namespace

absl::StatusOr<DeviceFacts> OpenDevice(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no CUDA device can be used here: ",
        error == cudaSuccess ? "the driver knows of none" : cudaGetErrorString(error)));
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(
        absl::StrCat("there is no device cuda:", ordinal, "; there ", count == 1 ? "is" : "are",
                     " cuda:0", count == 1 ? "" : absl::StrCat(" to cuda:", count - 1)));
  }
  // It makes the context, for which the card may have no memory, or be another process's alone.
  if (const cudaError_t unbound = cudaSetDevice(ordinal); unbound != cudaSuccess) {
    cudaGetLastError();  // it is answered here
    return absl::UnavailableError(
        absl::StrCat("cuda:", ordinal, " cannot be used now: ", cudaGetErrorString(unbound)));
  }
  cudaDeviceProp properties;
  CheckCall(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  if (const char* why = WhyKernelsCannotRun(); why != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cuda:", ordinal, " (", properties.name, ") cannot run the kernels of this build: it has ",
        "compute capability ", properties.major, ".", properties.minor, ", they are compiled for ",
        ZIGGURAT_CUDA_COMPILED_FOR, " (", why, ")"));
  }
  return DeviceFacts{properties.name, properties.multiProcessorCount};
}

void BindDevice(int ordinal) { CheckCall(cudaSetDevice(ordinal), "cudaSetDevice"); }

size_t FreeDeviceBytes() {
  size_t free = 0, total = 0;
  CheckCall(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(MemoryKind kind, size_t bytes,
                                                    const char* what) {
  if (bytes == 0) return DeviceMemory();
  void* data = nullptr;
  const bool is_device = kind == MemoryKind::kDevice;
  const cudaError_t error = is_device ? cudaMalloc(&data, bytes) : cudaMallocHost(&data, bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();  // it is answered here
    return absl::ResourceExhaustedError(absl::StrCat(
        is_device ? "cudaMalloc" : "cudaMallocHost", " of ", bytes, " bytes for the ", what, ": ",
        cudaGetErrorString(error),
        is_device ? absl::StrCat(" (", FreeDeviceBytes(), " are free)") : std::string()));
  }
  DeviceMemory memory;
  memory.data_ = std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(data), Free{kind});
  memory.bytes_ = bytes;
  if (is_device) {
    CheckCall(cudaMemset(data, 0, bytes), "cudaMemset");
    CheckCall(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } else {
    std::memset(data, 0, bytes);
  }
  return memory;
}

void DeviceMemory::Free::operator()(std::byte* memory) const {
  CheckCall(kind == MemoryKind::kDevice ? cudaFree(memory) : cudaFreeHost(memory),
            kind == MemoryKind::kDevice ? "cudaFree" : "cudaFreeHost");
}

std::unique_ptr<Stream> Stream::Create() { return std::make_unique<RuntimeStream>(); }
std::unique_ptr<Event> Event::Create() { return std::make_unique<RuntimeEvent>(); }
absl::StatusOr<std::unique_ptr<Graph>> Graph::Record(Stream& stream,
                                                     const std::function<void()>& work) {
  CheckCall(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
  work();
  cudaGraph_t recorded = nullptr;
  if (cudaStreamEndCapture(stream.get(), &recorded) != cudaSuccess || recorded == nullptr) {
    cudaGetLastError();  // it is answered here
    return absl::InternalError("what was asked of a stream cannot be recorded");
  }
  cudaGraphExec_t graph = nullptr;
  cudaError_t error = cudaGraphInstantiate(&graph, recorded, 0);
  CheckCall(cudaGraphDestroy(recorded), "cudaGraphDestroy");
  std::unique_ptr<Graph> owned;
  if (error == cudaSuccess) {
    owned = std::make_unique<RuntimeGraph>(graph);
    error = cudaGraphUpload(graph, stream.get());  // which takes the memory that a launch would
  }
  if (error == cudaSuccess) return owned;
  cudaGetLastError();  // it is answered here
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError("the driver has no memory for a graph");
  }
  return absl::InternalError(
      absl::StrCat("the driver makes no graph of a recording: ", cudaGetErrorString(error)));
}

}  // namespace ziggurat::cuda

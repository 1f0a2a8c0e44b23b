// Runs Llama, Mistral and Qwen2 models on an NVIDIA GPU: what llama_decoder.h says, with weights,
// workspace and cache in the device's memory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/decoder/llama_decoder.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Whether this build has CUDA.
bool HasCuda();

/// The name of a card that can be used. The errors are those of LoadCudaDecoder; UNIMPLEMENTED,
/// here and below, where HasCuda is false.
absl::StatusOr<std::string> FindCudaDevice(int device);

/// Bytes per second, read and written together, of copies of so many bytes within the card's
/// memory. The errors are those of FindCudaDevice, and RESOURCE_EXHAUSTED.
absl::StatusOr<double> MeasureCudaCopyBandwidth(int device, size_t bytes = size_t{256} << 20);

struct CudaDecoderOptions {
  DecoderOptions decoder;
  int device = 0;
  int max_sequences = 256;  ///< of a decode step
};

/// FAILED_PRECONDITION where no CUDA device can be used here, or this one cannot run the kernels of
/// this build, NOT_FOUND where there is none of this number, RESOURCE_EXHAUSTED where its memory
/// does not hold the model: names every part and its size. Else as LoadLlamaDecoder. Nothing is
/// allocated on the device afterwards but the pool (ModelRunner::AllocatePool).
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadCudaDecoder(const std::filesystem::path& dir,
                                                             const CudaDecoderOptions& options);

}  // namespace ziggurat

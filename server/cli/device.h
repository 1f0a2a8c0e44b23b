// Which device a model runs on, and the model on it, for every command that computes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/decoder/llama_decoder.h"
#include "model/model_runner.h"

namespace ziggurat {

/// What --device says: the number of a CUDA device that can be used, or DeviceChoice::kCpu. Logs
/// which card it is or, for `auto`, why it is none.
absl::StatusOr<int> ChooseDevice(const std::string& flag);

/// Threads of computation: what --threads says, or one for each CPU (MachineCpus) where it says 0.
int ThreadCount(int flag);

struct DeviceRunner {
  std::unique_ptr<ModelRunner> runner;
  std::string backend;  ///< "cpu-avx512", "cuda:0", ...
};

/// The errors are those of LoadLlamaDecoder and LoadCudaDecoder.
///   device         as ChooseDevice gives it
///   max_sequences  of a decode step
absl::StatusOr<DeviceRunner> LoadOnDevice(const std::filesystem::path& model,
                                          DecoderOptions options, int device, int max_sequences);

}  // namespace ziggurat

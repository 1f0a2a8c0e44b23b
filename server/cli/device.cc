#include "server/cli/device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/backend.h"
#include "model/cuda/cuda_decoder.h"
#include "server/cli/failure.h"
#include "server/config.h"
#include "server/machine_limits.h"
#include "spdlog/spdlog.h"

namespace ziggurat {

absl::StatusOr<int> ChooseDevice(const std::string& flag) {
  const absl::StatusOr<DeviceChoice> choice = ParseDevice(flag);
  if (!choice.ok()) return choice.status();
  if (choice->ordinal == DeviceChoice::kCpu) return DeviceChoice::kCpu;
  const absl::StatusOr<std::string> card = FindCudaDevice(choice->ordinal);
  if (card.ok()) {
    spdlog::info("cuda:{}: {}", choice->ordinal, *card);
    return choice->ordinal;
  }
  // A card that is there and busy is no reason to serve without it, slowly and for good.
  if (choice->is_auto && !absl::IsUnavailable(card.status())) {
    spdlog::info("on the CPU: {}", std::string(card.status().message()));
    return DeviceChoice::kCpu;
  }
  return Prefixed(absl::StrCat("--device ", flag), card.status());
}

int ThreadCount(int flag) { return flag > 0 ? flag : MachineCpus(); }

absl::StatusOr<DeviceRunner> LoadOnDevice(const std::filesystem::path& model,
                                          DecoderOptions options, int device, int max_sequences) {
  DeviceRunner loaded;
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner;
  if (device == DeviceChoice::kCpu) {
    absl::StatusOr<CpuLevel> level = DetectCpuLevel();
    if (!level.ok()) return level.status();
    auto backend = MakeCpuBackend(*level, options.threads);
    if (!backend.ok()) return backend.status();
    loaded.backend = std::string((*backend)->name());
    runner = LoadLlamaDecoder(model, options, *std::move(backend));
  } else {
    loaded.backend = absl::StrCat("cuda:", device);
    options.chunk_tokens = 2048;  // a GPU's products want many rows
    runner = LoadCudaDecoder(
        model, {.decoder = options, .device = device, .max_sequences = max_sequences});
  }
  if (!runner.ok()) return runner.status();
  loaded.runner = *std::move(runner);
  return loaded;
}

}  // namespace ziggurat

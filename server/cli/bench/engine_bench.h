// Measures an engine in this process: the real scheduler, block manager and decoder, no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "model/checkpoint/model_config.h"
#include "scheduler/engine.h"
#include "server/cli/bench/case_timer.h"
#include "server/config.h"

namespace ziggurat::bench {

struct EngineBenchOptions {
  std::filesystem::path model;
  size_t kv_cache_bytes = 0;
  ElementType dtype = ElementType::kBf16;
  int device = DeviceChoice::kCpu;  ///< as ChooseDevice gives it (server/cli/device.h)
  int threads = 1;
  int prefill_tokens = 8192;  ///< of one prefill batch
  int max_batch = 1;
  int max_prompt_tokens = 1;
};

/// INVALID_ARGUMENT where prompts of `context` tokens, of which `decode_tokens` steps are timed, do
/// not fit a model's context.
absl::Status CheckFits(int context, int decode_tokens, int max_context_tokens);

class EngineBench {
 public:
  /// Loads the model. Errors are those of the decoder and of Engine::Create.
  static absl::StatusOr<std::unique_ptr<EngineBench>> Create(const EngineBenchOptions& options);
  /// An engine over a model that is there already; model(), backend() and weight_bytes() say
  /// nothing then.
  static absl::StatusOr<std::unique_ptr<EngineBench>> CreateWith(
      std::unique_ptr<ModelRunner> runner, const EngineOptions& options);
  ~EngineBench();

  /// INVALID_ARGUMENT where the model's context is too short; RESOURCE_EXHAUSTED where the requests
  /// do not run all at once (the pool is too small). Not to be called again after an error.
  absl::StatusOr<EngineFigures> Run(const EngineCase& which);

  absl::Status CheckServes(const Policy& policy) const { return engine_->CheckServes(policy); }
  const ModelConfig& model() const { return model_; }
  const std::string& backend() const { return backend_; }
  const ModelShape& shape() const { return engine_->model_shape(); }
  ElementType element() const { return shape().element; }
  /// Bytes of weights that every step reads.
  size_t weight_bytes() const;

 private:
  EngineBench() = default;
  absl::Status Start(std::unique_ptr<ModelRunner> runner, const EngineOptions& options);
  /// Once all requests have ended: with the last step, which is noted after its tokens went out.
  StepParts PartsOnceIdle() const;
  absl::StatusOr<std::vector<RequestId>> SubmitAll(const EngineCase& which);

  ModelConfig model_;
  std::string backend_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
  uint64_t next_seed_ = 1;
};

}  // namespace ziggurat::bench

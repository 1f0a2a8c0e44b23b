// Measures an engine in this process: the real scheduler, block manager and decoder, no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"
#include "model/checkpoint/model_config.h"
#include "scheduler/engine.h"
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

/// `batch` requests of `context` random tokens each, all at once.
struct EngineCase {
  std::shared_ptr<const Policy> policy;
  int batch = 1;
  int context = 1;
  int decode_tokens = 0;  ///< of each request while all are decoding; 0: prefill only
  /// Of `batch` requests those are timed that the pool holds at once; the others never start.
  bool fills_pool = false;
  std::function<void()> after_submit = {};  ///< called once all have been submitted
  /// Not empty: called once all decode. The model waits for it, and the steps from then to the end
  /// are timed: they may be shorter than it takes to wake whoever reads their outputs.
  std::function<void()> after_start = {};
};

/// Steps of the engine thread while a case ran, and its seconds in them.
struct StepParts {
  uint64_t steps = 0;
  double device = 0;  ///< a device at work on decode steps, whatever the thread did
  double model = 0;   ///< matrix products, norms, activations
  double attention = 0;
  double sample = 0;
  double schedule = 0;  ///< everything else

  double total() const { return model + attention + sample + schedule; }
};

struct EngineFigures {
  double prefill_seconds = 0;  ///< until every request had its first token
  double prefill_tokens_per_second = 0;
  StepParts prefill_parts;  ///< where nothing is decoded behind it

  int batch = 0;  ///< requests that decoded together
  int steps = 0;  ///< timed decode steps, all requests in each
  double decode_seconds = 0;
  double decode_tokens_per_second = 0;
  /// Of `steps` steps, by the mean of those that the engine had done. With after_start by the mean
  /// of those in which no request begins or ends, unless all were over too soon to tell them apart.
  StepParts decode_parts;
  /// With after_start: what the steps in which requests begin and end took beyond that, without the
  /// model's time.
  double edges_seconds = 0;
  size_t cache_bytes = 0;       ///< blocks held by all requests at the end
  double bytes_per_second = 0;  ///< weights and cache that a step reads, by its time
};

/// INVALID_ARGUMENT where one of the numbers of a flag is not from 1 to `most`.
absl::Status CheckNumbers(const char* flag, const std::vector<int>& values, int most);

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

  const ModelConfig& model() const { return model_; }
  const std::string& backend() const { return backend_; }
  const ModelShape& shape() const { return engine_->model_shape(); }
  ElementType element() const { return shape().element; }
  /// Bytes of weights that every step reads.
  size_t weight_bytes() const;

 private:
  EngineBench() = default;
  absl::Status Start(std::unique_ptr<ModelRunner> runner, const EngineOptions& options);
  StepParts PartsSoFar();
  /// Once all requests have ended: with the last step, which is noted after its tokens went out.
  StepParts PartsOnceIdle();
  absl::StatusOr<std::vector<RequestId>> SubmitAll(const EngineCase& which);

  ModelConfig model_;
  std::string backend_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
  uint64_t next_seed_ = 1;
};

}  // namespace ziggurat::bench

#include "model/cuda/cuda_decoder.h"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_backend.h"
#include "block_manager/check.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/model_config.h"
#include "model/checkpoint/weights_layout.h"
#include "model/cuda/cuda_linear.h"
#include "model/cuda/cuda_llama_runner.h"
#include "model/cuda/cuda_steps.h"
#include "model/cuda/torch_prompt_library.h"
#include "model/decoder/caught_error.h"
#include "model/decoder/decoder_memory.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

using cuda::DeviceMemory;
using cuda::MemoryKind;
using cuda::MemoryPart;

/// The parts of a runner on a device, in the order in which they are made.
struct Plan {
  cuda::CudaStepsOptions steps;
  cuda::CudaBackendOptions backend;
  size_t weight_bytes = 0;
  size_t workspace_bytes = 0;
  size_t prompt_library_bytes = 0;  ///< 0 where no library attends to prompts

  std::vector<MemoryPart> Parts() const {
    std::vector<MemoryPart> parts = {
        {"weights", weight_bytes},
        {"prefill workspace", workspace_bytes},
        {"workspace of matrix products", cuda::ProductLibrary::WorkspaceBytes()},
        {"scratch memory", backend.scratch_bytes},
        {"memory of edits", backend.lend_bytes},
        {"upload ring", backend.upload_bytes}};
    for (const MemoryPart& part : cuda::CudaSteps::Parts(steps)) parts.push_back(part);
    for (const MemoryPart& part : cuda::TokenDraws::Parts(steps.rows, steps.shape.model.vocab_size))
      parts.push_back(part);
    if (prompt_library_bytes > 0) {
      parts.push_back({"libtorch's attention of prompts", prompt_library_bytes});
    }
    parts.push_back({"kernels and graphs", cuda::kDriverBytes});
    return parts;
  }
};

/// `prompts` may be null.
Plan MakePlan(const ModelConfig& config, const CudaDecoderOptions& options,
              const cuda::DeviceFacts& device, const cuda::PromptLibrary* prompts) {
  Plan plan;
  const AttentionShape heads = AttentionShapeOf(config, options.decoder.element);
  const int tokens = options.decoder.max_prefill_tokens;
  const size_t context = config.MaxContextTokens();

  plan.steps.workers = cuda::FindDecodeWorkers(heads, device.multiprocessors);
  plan.steps.rows = options.max_sequences;
  plan.steps.shape = MakeWorkspaceShape(config, options.decoder);
  plan.steps.heads = heads;
  plan.steps.norm_epsilon = static_cast<float>(config.rms_norm_eps);
  plan.steps.inverse_frequencies = RopeInverseFrequencies(config);

  plan.backend.scratch_bytes = cuda::ScratchBytesFor(heads, tokens);
  // Lists of slots of all heads, the sums of all query heads, and what a merge decodes.
  plan.backend.lend_bytes =
      std::max(context * heads.num_q_heads * sizeof(float),
               TailMergeBytes(
                   heads, static_cast<int>(std::min<size_t>(MergeOptions::kLongestTail, context))));
  // Half of it takes one list; a table has some words for each slot at most. Or what is told of an
  // edit in every layer of every sequence, so that the host need not wait for a step to be done
  // while it orders those of the next.
  constexpr size_t kOfEdit = 768, kMost = size_t{32} << 20;
  const size_t edits = kOfEdit * config.num_layers * options.max_sequences;
  plan.backend.upload_bytes =
      std::max({size_t{2} << 20, 4 * context * heads.num_kv_heads * sizeof(int32_t),
                std::min(2 * edits, kMost)});
  plan.weight_bytes = cuda::WeightBytes(config, options.decoder.element);
  plan.workspace_bytes =
      WorkspaceCapacityBytes(MakePrefillLanes(plan.steps.shape, options.decoder));
  if (prompts != nullptr) plan.prompt_library_bytes = prompts->WorkspaceBytes(heads, tokens);
  plan.steps.besides_pool = plan.Parts();
  return plan;
}

absl::Status CheckMemory(const Plan& plan, int device) {
  size_t needed = 0;
  for (const MemoryPart& part : plan.Parts()) needed += part.bytes;
  const size_t free = cuda::FreeDeviceBytes();
  if (needed <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("cuda:", device, " has ", free, " bytes free, the model needs ", needed,
                   " besides its KV cache: ", cuda::ListParts(plan.Parts())));
}

/// So that the library allocates nothing behind the KV cache, which takes what is left.
void WarmUp(cuda::PromptLibrary& prompts, const AttentionShape& heads,
            const DecoderOptions& options, const DeviceMemory& workspace, cudaStream_t stream) {
  const ElementType element = options.element;
  const int tokens = options.max_prefill_tokens;
  CheckThat(cuda::WarmUpBytes(heads, element, tokens) <= workspace.bytes(),
            "the prefill workspace has no room for the queries of the longest prompt");
  if (cuda::WarmUp(prompts, heads, element, tokens, workspace.data(), stream)) return;
  spdlog::warn(
      "libtorch's attention has failed for a prompt of up to {} tokens; such prompts go "
      "without it",
      tokens);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> Load(const ModelConfig& config,
                                                  const Checkpoint& checkpoint,
                                                  const CudaDecoderOptions& options,
                                                  const Plan& plan,
                                                  std::unique_ptr<cuda::PromptLibrary> prompts) {
  const std::shared_ptr<cuda::Stream> stream = cuda::Stream::Create();
  auto products = cuda::ProductLibrary::Create(stream.get());
  if (!products.ok()) return products.status();
  auto memory = DeviceMemory::Allocate(MemoryKind::kDevice, plan.weight_bytes, "weights");
  if (!memory.ok()) return memory.status();
  auto weights = LlamaWeights::Load(
      config, checkpoint, options.decoder.element,
      cuda::MakeCudaLinearFactory(stream.get(), *std::move(memory), *std::move(products)));
  if (!weights.ok()) return weights.status();
  auto workspace =
      DeviceMemory::Allocate(MemoryKind::kDevice, plan.workspace_bytes, "prefill workspace");
  if (!workspace.ok()) return workspace.status();
  if (prompts != nullptr) {
    WarmUp(*prompts, plan.steps.heads, options.decoder, *workspace, stream->get());
  }
  auto backend = cuda::CudaBackend::Create(stream, plan.backend, std::move(prompts));
  if (!backend.ok()) return backend.status();
  auto steps = cuda::CudaSteps::Create(plan.steps, stream.get(), weights->get());
  if (!steps.ok()) return steps.status();
  const auto region = std::make_shared<DeviceMemory>(*std::move(workspace));
  return std::make_unique<cuda::CudaLlamaRunner>(
      config, options.decoder, options.device,
      LlamaParts{*std::move(backend), *std::move(weights),
                 WorkspaceRegion::Over(region->data(), region->bytes(), region)},
      *std::move(steps));
}

absl::Status CheckSequences(int max_sequences) {
  if (max_sequences >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sequences of a step must be at least 1, not ", max_sequences));
}

}  // namespace

bool HasCuda() { return true; }

absl::StatusOr<std::string> FindCudaDevice(int device) {
  absl::StatusOr<cuda::DeviceFacts> facts = cuda::OpenDevice(device);
  if (!facts.ok()) return facts.status();
  return facts->name;
}

absl::StatusOr<double> MeasureCudaCopyBandwidth(int device, size_t bytes) {
  if (auto facts = cuda::OpenDevice(device); !facts.ok()) return facts.status();
  return cuda::MeasureCopyBandwidth(bytes);
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadCudaDecoder(const std::filesystem::path& dir,
                                                             const CudaDecoderOptions& options) {
  absl::Status status = CheckOptions(options.decoder);
  status.Update(CheckSequences(options.max_sequences));
  if (!status.ok()) return status;
  absl::StatusOr<cuda::DeviceFacts> device = cuda::OpenDevice(options.device);
  if (!device.ok()) return device.status();
  const absl::StatusOr<ModelFiles> files = OpenModel(dir);
  if (!files.ok()) return files.status();
  const ModelConfig& config = files->config;
  std::unique_ptr<cuda::PromptLibrary> prompts = cuda::MakeTorchPromptLibrary(options.device);
  if (prompts != nullptr && !prompts->Serves(AttentionShapeOf(config, options.decoder.element),
                                             options.decoder.element)) {
    prompts = nullptr;
  }
  const Plan plan = MakePlan(config, options, *device, prompts.get());
  if (status = CheckMemory(plan, options.device); !status.ok()) return status;
  omp_set_num_threads(options.decoder.threads);  // weights are converted on the host
  try {
    return Load(config, files->checkpoint, options, plan, std::move(prompts));
  } catch (const std::exception& error) {  // of memory, or libtorch's
    return CaughtError(error, "loading the weights");
  }
}

}  // namespace ziggurat

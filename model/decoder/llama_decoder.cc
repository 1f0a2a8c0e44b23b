#include "model/decoder/llama_decoder.h"

#include <malloc.h>
#include <omp.h>

#include <exception>
#include <utility>

#include "model/checkpoint/model_config.h"
#include "model/checkpoint/weights_layout.h"
#include "model/decoder/caught_error.h"
#include "model/decoder/decoder_memory.h"
#include "model/decoder/host_llama_runner.h"

namespace ziggurat {

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadLlamaDecoder(
    const std::filesystem::path& dir, const DecoderOptions& options,
    std::unique_ptr<AttentionBackend> backend) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  const absl::StatusOr<ModelFiles> files = OpenModel(dir);
  if (!files.ok()) return files.status();
  const ModelConfig& config = files->config;
  omp_set_num_threads(options.threads);
  try {
    auto weights = LlamaWeights::Load(config, files->checkpoint, options.element,
                                      MakeLinearFactory(options.element));
    if (!weights.ok()) return weights.status();
    // Loading frees as much as it keeps; the allocator would hold on to it.
    malloc_trim(0);
    // It becomes resident only as far as batches use it.
    auto workspace = WorkspaceRegion::Create(
        WorkspaceCapacityBytes(MakePrefillLanes(MakeWorkspaceShape(config, options), options)));
    if (!workspace.ok()) return workspace.status();
    auto runner = std::make_unique<HostLlamaRunner>(config, options, std::move(backend),
                                                    *std::move(weights), *std::move(workspace));
    if (options.warm_up) {
      if (absl::Status status = runner->WarmUp(); !status.ok()) return status;
    }
    // Whoever steps the model has a team of its own. With two, libgomp counts more threads than
    // cores and lets them sleep between products, which costs a small model two fifths of its
    // speed.
    omp_pause_resource_all(omp_pause_soft);
    return runner;
  } catch (const std::exception& error) {  // of memory, or oneDNN's
    return CaughtError(error, "loading the weights");
  }
}

}  // namespace ziggurat

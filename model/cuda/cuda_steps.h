// Decode steps on a device: a batch of all running sequences, one token each, as a graph that is
// recorded once for every bucket of batch sizes.
//
// The host says what has changed since the last step (SequenceTables), and which tokens come, all
// of it through pinned memory; it waits for nothing but what comes out. Counts are read from the
// table by the kernels, so a graph serves every step of its bucket, whatever grows and moves.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device.h"
#include "model/cuda/memory_part.h"
#include "model/cuda/sequence_tables.h"
#include "model/cuda/step_graphs.h"
#include "model/cuda/token_draws.h"
#include "model/decoder/decode_buffers.h"
#include "model/decoder/llama_weights.h"
#include "model/model_runner.h"

namespace ziggurat::cuda {

struct CudaStepsOptions {
  DecodeWorkers workers;
  int rows = 1;  ///< sequences of a step, at most
  WorkspaceShape shape;
  AttentionShape heads;
  float norm_epsilon = 0;
  std::vector<float> inverse_frequencies;  ///< [head_dim / 2]
  std::vector<MemoryPart> besides_pool;    ///< what else the device's memory is for
};

class CudaSteps {
 public:
  /// What Create allocates.
  static std::vector<MemoryPart> Parts(const CudaStepsOptions& options);
  /// `stream` and `weights` outlive it. RESOURCE_EXHAUSTED names the part.
  static absl::StatusOr<std::unique_ptr<CudaSteps>> Create(const CudaStepsOptions& options,
                                                           Stream* stream,
                                                           const LlamaWeights* weights);

  // As ModelRunner has them; the inputs have been checked.
  absl::StatusOr<std::byte*> AllocatePool(size_t num_blocks, size_t block_bytes);
  size_t FreePoolBytes();
  void AttachPool(PoolView pool) { pool_view_ = pool; }
  absl::Status Decode(absl::Span<const DecodeInput> inputs, float* logits);
  absl::Status DecodeTokens(absl::Span<const DecodeInput> inputs, absl::Span<const TokenDraw> draws,
                            SampledToken* tokens);
  void PrepareDecode(absl::Span<const DecodeInput> inputs) { tables_->Prepare(inputs); }
  absl::Status AwaitTokens();

  double busy_seconds() const { return busy_seconds_; }  ///< DeviceSeconds::steps
  /// The device's memory for logits, between steps: [rows(), vocab_size] f32.
  float* logits() { return logits_.as<float>(); }
  int rows() const { return options_.rows; }

 private:
  /// What the host hands over in every step; in pinned memory, and a copy of it on the device.
  struct Inputs {
    int32_t* tokens;     ///< [rows]
    int32_t* positions;  ///< [rows]
    int32_t* steps;      ///< [rows]
  };
  CudaSteps(const CudaStepsOptions& options, Stream* stream, const LlamaWeights* weights)
      : options_(options), stream_(stream), weights_(weights) {}

  Inputs InputsAt(std::byte* base) const;
  static DecodeBucket DecodeBucketOf(const CudaStepsOptions& options, int items,
                                     const StepKinds& kinds);
  StepBucket BucketOf(absl::Span<const DecodeInput> inputs) const;
  absl::Status InParts(size_t first, size_t count,
                       absl::FunctionRef<absl::Status(size_t first, size_t count)> run);
  /// Decode of what goes at once.
  absl::Status DecodePart(absl::Span<const DecodeInput> inputs, float* logits);
  /// A step whose tokens are asked for and not yet there.
  struct Drawing {
    absl::Span<const DecodeInput> inputs;
    absl::Span<const TokenDraw> draws;
    SampledToken* tokens = nullptr;
  };
  absl::Status AskTokens(const Drawing& step);
  void FetchTokens(const Drawing& step);
  /// Everything up to the logits, which are on the device then, or are to be.
  absl::Status RunStep(absl::Span<const DecodeInput> inputs);
  void SendPatches();
  void SendInputs(absl::Span<const DecodeInput> inputs);
  absl::Status Launch(absl::Span<const DecodeInput> inputs, const StepBucket& bucket);
  /// Everything between the inputs and the logits. `lazy`: the inputs, where some ask for masses.
  absl::Status RunModel(const StepBucket& bucket, absl::Span<const DecodeInput> lazy);
  absl::Status RunLayer(int layer, const StepBucket& bucket, absl::Span<const DecodeInput> lazy);
  /// linear(RMSNorm(residual)).
  absl::Status RunNormed(Linear& linear, const float* norm, int rows, void* out);
  /// From the residual to what the layer's last product takes.
  absl::Status RunGated(const LlamaLayer& layer, int rows);
  void MeasureLazyMass(int layer, absl::Span<const DecodeInput> inputs);
  void FetchLogits(absl::Span<const DecodeInput> inputs, float* logits);
  /// What sequences count and measure besides.
  void FetchMeasured(absl::Span<const DecodeInput> inputs);
  void AskCounts(absl::Span<const DecodeInput> inputs);
  void AddCounts(absl::Span<const DecodeInput> inputs);
  void FetchLazyMass(absl::Span<const DecodeInput> inputs);
  double* MassOf(int row, int layer) const;
  DeviceCache cache() const;

  const CudaStepsOptions options_;
  Stream* stream_;
  const LlamaWeights* weights_;
  DecodeBuffers::Pointers buffers_ = {};
  Inputs host_ = {}, device_ = {};
  PoolView pool_view_;
  std::unique_ptr<SequenceTables> tables_;
  std::unique_ptr<TokenDraws> draws_;
  Drawing drawing_;                       ///< of DecodeTokens, for AwaitTokens
  std::unique_ptr<Event> begun_, drawn_;  ///< a step's first kernel begins; its tokens are there
  /// Batch sizes by kinds of caches in a batch, which record begun_.
  static constexpr size_t kMostGraphs = 64;
  StepGraphs graphs_{kMostGraphs};
  double busy_seconds_ = 0;

  DeviceMemory activations_, logits_, inputs_, scratch_, measured_, frequencies_;
  DeviceMemory pool_, table_;
  DeviceMemory pinned_inputs_, pinned_counts_, pinned_patches_;
};

}  // namespace ziggurat::cuda

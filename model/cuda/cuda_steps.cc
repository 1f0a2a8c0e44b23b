#include "model/cuda/cuda_steps.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/cuda/elementwise.h"
#include "attention/cuda/statistics.h"
#include "attention/cuda/writes.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat::cuda {
namespace {

/// Patches that go to the device at once; a step that has more waits for the first ones.
constexpr size_t kPatchesAtOnce = size_t{1} << 18;
/// Segments of a layer that scratch memory is there for, each of all KV heads, with all rows taken,
/// and with one row, of all kinds at once.
constexpr int kScratchSegments = 4;
constexpr int kScratchSegmentsOfOne = 16;

constexpr size_t Rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

/// PoD: attended and skipped.
size_t CountBytes(size_t rows) { return rows * 2 * sizeof(unsigned long long); }

size_t InputBytes(int rows) { return 3 * Rounded(rows * sizeof(int32_t)); }

}  // namespace

DecodeBucket CudaSteps::DecodeBucketOf(const CudaStepsOptions& options, int items,
                                       const StepKinds& kinds) {
  DecodeBucket bucket;
  bucket.shape = options.heads;
  bucket.max_items = items;
  bucket.max_runs = items * kinds.runs;
  bucket.workers = options.workers;
  bucket.layers = options.shape.model.num_layers;
  bucket.kernels = kinds.kernels;
  bucket.distant = kinds.distant;
  return bucket;
}

std::vector<MemoryPart> CudaSteps::Parts(const CudaStepsOptions& options) {
  const size_t rows = options.rows;
  const int runs = RunsOf(options.heads, options.heads.num_kv_heads);
  StepKinds most;
  most.runs = kScratchSegments * runs;
  most.distant = true;
  // Two encodings, as the caches of a mixed batch for the most part have.
  most.kernels = DecodeKernel::Plain().bit() | DecodeKernel::Tensor(Encoding::kBf16).bit() |
                 DecodeKernel::Tensor(Encoding::kInt8).bit();
  StepKinds of_one = most;
  of_one.runs = kScratchSegmentsOfOne * runs;
  of_one.kernels = DecodeKernel::kAllBits;
  return {{"activations of decode steps", DecodeBuffers::BytesFor(options.shape, options.rows)},
          {"logits", rows * options.shape.model.vocab_size * sizeof(float)},
          {"inputs of decode steps", InputBytes(options.rows)},
          {"scratch memory of decode attention",
           std::max(DecodeScratchBytes(DecodeBucketOf(options, options.rows, most)),
                    DecodeScratchBytes(DecodeBucketOf(options, 1, of_one)))},
          {"measurements of decode steps",
           Rounded(CountBytes(rows)) +
               Rounded(2 * rows * options.shape.model.num_layers * sizeof(double)) +
               SlotMassScratchBytes(options.heads)},
          {"rotary frequencies", options.inverse_frequencies.size() * sizeof(float)}};
}

absl::StatusOr<std::unique_ptr<CudaSteps>> CudaSteps::Create(const CudaStepsOptions& options,
                                                             Stream* stream,
                                                             const LlamaWeights* weights) {
  std::unique_ptr<CudaSteps> steps(new CudaSteps(options, stream, weights));
  const std::vector<MemoryPart> parts = Parts(options);
  DeviceMemory* const memories[] = {&steps->activations_, &steps->logits_,   &steps->inputs_,
                                    &steps->scratch_,     &steps->measured_, &steps->frequencies_};
  for (size_t i = 0; i < parts.size(); ++i) {
    auto memory = DeviceMemory::Allocate(MemoryKind::kDevice, parts[i].bytes, parts[i].what);
    if (!memory.ok()) return memory.status();
    *memories[i] = *std::move(memory);
  }
  auto draws = TokenDraws::Create(stream, options.rows, options.shape.model.vocab_size);
  if (!draws.ok()) return draws.status();
  steps->draws_ = *std::move(draws);
  steps->begun_ = Event::Create();
  steps->drawn_ = Event::Create();
  auto inputs = DeviceMemory::Allocate(MemoryKind::kPinned, InputBytes(options.rows), "inputs");
  if (!inputs.ok()) return inputs.status();
  steps->pinned_inputs_ = *std::move(inputs);
  auto counts = DeviceMemory::Allocate(MemoryKind::kPinned, CountBytes(options.rows), "counts");
  if (!counts.ok()) return counts.status();
  steps->pinned_counts_ = *std::move(counts);
  auto patches = DeviceMemory::Allocate(
      MemoryKind::kPinned, sizeof(TablePatch) * (kPatchesAtOnce + 1), "patches of the table");
  if (!patches.ok()) return patches.status();
  steps->pinned_patches_ = *std::move(patches);

  steps->buffers_ = DecodeBuffers::Over(options.shape, options.rows, steps->activations_.data());
  steps->host_ = steps->InputsAt(steps->pinned_inputs_.data());
  steps->device_ = steps->InputsAt(steps->inputs_.data());
  stream->Copy(steps->frequencies_.data(), options.inverse_frequencies.data(),
               steps->frequencies_.bytes());
  stream->Synchronize();
  return steps;
}

CudaSteps::Inputs CudaSteps::InputsAt(std::byte* base) const {
  const size_t stride = Rounded(options_.rows * sizeof(int32_t));
  const auto at = [&](size_t i) { return reinterpret_cast<int32_t*>(base + i * stride); };
  return {at(0), at(1), at(2)};
}

// ---- The pool and the table of it ---------------------------------------------------------------

absl::StatusOr<std::byte*> CudaSteps::AllocatePool(size_t num_blocks, size_t block_bytes) {
  const int layers = options_.shape.model.num_layers;
  const uint32_t words = SequenceTables::WordsFor(layers, options_.rows, num_blocks);
  const size_t pool_bytes = num_blocks * block_bytes, table_bytes = words * sizeof(uint32_t);
  if (const size_t free = FreeDeviceBytes(); pool_bytes + table_bytes + kDriverBytes > free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache takes ", pool_bytes, " bytes and the table of it ", table_bytes,
                     "; ", free, " are free, of which kernels and graphs need ", kDriverBytes,
                     "; the rest of its memory is for: ", ListParts(options_.besides_pool)));
  }
  auto pool = DeviceMemory::Allocate(MemoryKind::kDevice, pool_bytes, "KV cache");
  if (!pool.ok()) return pool.status();
  auto table = DeviceMemory::Allocate(MemoryKind::kDevice, table_bytes, "table of the KV cache");
  if (!table.ok()) return table.status();
  graphs_.Clear();  // they were recorded with the pool and the table before these
  pool_ = *std::move(pool);
  table_ = *std::move(table);
  const DistantRows distant{buffers_.low_q, buffers_.distant_lse,
                            measured_.as<unsigned long long>()};
  tables_ = std::make_unique<SequenceTables>(options_.heads, options_.shape.model.element, layers,
                                             options_.rows, words, distant);
  return pool_.data();
}

size_t CudaSteps::FreePoolBytes() {
  const size_t free = FreeDeviceBytes();
  const AttentionShape& heads = options_.heads;
  const size_t blocks = free / CacheGeometry::DefaultBlockBytes(heads.num_kv_heads, heads.head_dim);
  const size_t table = sizeof(uint32_t) * SequenceTables::WordsFor(options_.shape.model.num_layers,
                                                                   options_.rows, blocks);
  return free > table + kDriverBytes ? free - table - kDriverBytes : 0;
}

DeviceCache CudaSteps::cache() const {
  return {reinterpret_cast<unsigned char*>(pool_view_.base), pool_view_.block_bytes,
          table_.as<const uint32_t>()};
}

// ---- A step -------------------------------------------------------------------------------------

/// `run(first, count)` for all inputs at once. What that needs depends on the kinds of caches that
/// happen to be in the step, and admission knows nothing of it: where it is more than there is
/// (RESOURCE_EXHAUSTED), the step goes in two halves, in every step anew. That is slow, since each
/// half drops the rows of the other from the table, but ends nobody's request.
absl::Status CudaSteps::InParts(size_t first, size_t count,
                                absl::FunctionRef<absl::Status(size_t first, size_t count)> run) {
  absl::Status status = run(first, count);
  if (!absl::IsResourceExhausted(status) || count <= 1) return status;
  const size_t half = count / 2;
  status = InParts(first, half, run);
  return status.ok() ? InParts(first + half, count - half, run) : status;
}

absl::Status CudaSteps::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  return InParts(0, inputs.size(), [&](size_t first, size_t count) {
    return DecodePart(inputs.subspan(first, count),
                      logits + first * options_.shape.model.vocab_size);
  });
}

absl::Status CudaSteps::DecodeTokens(absl::Span<const DecodeInput> inputs,
                                     absl::Span<const TokenDraw> draws, SampledToken* tokens) {
  // Of several parts each waits for the one before, whose place it takes.
  drawing_ = {};
  return InParts(0, inputs.size(), [&](size_t first, size_t count) {
    FetchTokens(drawing_);
    drawing_ = {inputs.subspan(first, count), draws.subspan(first, count), tokens + first};
    absl::Status status = AskTokens(drawing_);
    if (!status.ok()) drawing_ = {};
    return status;
  });
}

absl::Status CudaSteps::AwaitTokens() {
  FetchTokens(drawing_);
  drawing_ = {};
  return absl::OkStatus();
}

absl::Status CudaSteps::DecodePart(absl::Span<const DecodeInput> inputs, float* logits) {
  if (absl::Status status = RunStep(inputs); !status.ok()) return status;
  AskCounts(inputs);
  FetchLogits(inputs, logits);
  FetchMeasured(inputs);
  return absl::OkStatus();
}

absl::Status CudaSteps::AskTokens(const Drawing& step) {
  if (absl::Status status = RunStep(step.inputs); !status.ok()) return status;
  std::vector<uint64_t> sequences;
  sequences.reserve(step.inputs.size());
  for (const DecodeInput& input : step.inputs) sequences.push_back(input.sequence);
  draws_->Ask(step.draws, sequences, tables_->rows_of_inputs(), logits());
  AskCounts(step.inputs);
  drawn_->Record(*stream_);
  return absl::OkStatus();
}

void CudaSteps::FetchTokens(const Drawing& step) {
  if (step.inputs.empty()) return;
  drawn_->Wait();  // and not for edits of caches that have been asked for since
  draws_->Fetch(step.draws, tables_->rows_of_inputs(), step.tokens);
  busy_seconds_ += drawn_->SecondsSince(*begun_);
  FetchMeasured(step.inputs);
}

absl::Status CudaSteps::RunStep(absl::Span<const DecodeInput> inputs) {
  if (tables_ == nullptr) return absl::FailedPreconditionError("no pool was allocated");
  absl::Status status = tables_->Update(inputs);
  SendPatches();
  if (status.ok()) {
    SendInputs(inputs);
    status = Launch(inputs, BucketOf(inputs));
  }
  // The next step writes to pinned memory that this one may still read.
  if (!status.ok()) stream_->Synchronize();
  return status;
}

void CudaSteps::SendPatches() {
  absl::Span<const TablePatch> patches = tables_->table().patches();
  auto* pinned = pinned_patches_.as<TablePatch>();
  auto* count = reinterpret_cast<uint32_t*>(pinned + kPatchesAtOnce);
  while (!patches.empty()) {
    const size_t piece = std::min(patches.size(), kPatchesAtOnce);
    std::memcpy(pinned, patches.data(), piece * sizeof(TablePatch));
    *count = static_cast<uint32_t>(piece);
    LaunchApplyPatches(pinned, count, static_cast<int>(piece), table_.as<uint32_t>(),
                       stream_->get());
    patches.remove_prefix(piece);
    if (!patches.empty()) stream_->Synchronize();  // it reads what is about to be written
  }
  tables_->table().Sent();
}

void CudaSteps::SendInputs(absl::Span<const DecodeInput> inputs) {
  // Rows that fill a bucket up compute something, too: the first token, at position 0.
  std::memset(pinned_inputs_.data(), 0, pinned_inputs_.bytes());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int row = tables_->row(i);
    host_.tokens[row] = inputs[i].token_id;
    host_.positions[row] = inputs[i].position;
    host_.steps[row] = inputs[i].step;
  }
  stream_->Copy(inputs_.data(), pinned_inputs_.data(), pinned_inputs_.bytes());
}

StepBucket CudaSteps::BucketOf(absl::Span<const DecodeInput> inputs) const {
  StepBucket bucket;
  bucket.items = std::min<int>(static_cast<int>(std::bit_ceil(inputs.size())), options_.rows);
  bucket.kinds = tables_->kinds();
  bucket.kinds.runs = static_cast<int>(std::bit_ceil(static_cast<unsigned>(bucket.kinds.runs)));
  return bucket;
}

absl::Status CudaSteps::Launch(absl::Span<const DecodeInput> inputs, const StepBucket& bucket) {
  const size_t needed = DecodeScratchBytes(DecodeBucketOf(options_, bucket.items, bucket.kinds));
  if (needed > scratch_.bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("decode attention of ", inputs.size(), " sequences needs ", needed,
                     " bytes of scratch memory, there are ", scratch_.bytes()));
  }
  if (bucket.kinds.distant) {
    stream_->Zero(measured_.data(), CountBytes(inputs.size()));
  }
  const bool measures = std::any_of(inputs.begin(), inputs.end(), [](const DecodeInput& input) {
    return input.lazy_test != nullptr;
  });
  if (measures) return RunModel(bucket, inputs);
  return graphs_.Run(bucket, *stream_, [&] { return RunModel(bucket, {}); });
}

absl::Status CudaSteps::RunModel(const StepBucket& bucket, absl::Span<const DecodeInput> lazy) {
  const ModelShape& model = options_.shape.model;
  const int rows = bucket.items, half = static_cast<int>(options_.inverse_frequencies.size());
  const cudaStream_t stream = stream_->get();
  begun_->Record(*stream_);
  LaunchBeginStep(tables_->step_items(), device_.positions, device_.steps, table_.as<uint32_t>(),
                  stream);
  LaunchEmbedTokens(model.element, weights_->embedding(), device_.tokens, rows, model.hidden_size,
                    buffers_.residual, stream);
  LaunchFillAngles(device_.positions, rows, frequencies_.as<const float>(), half, buffers_.cos,
                   buffers_.sin, stream);
  LaunchPlanDecode(DecodeBucketOf(options_, rows, bucket.kinds), cache(), tables_->items(0, rows),
                   tables_->layer_stride(), scratch_.data(), stream);
  for (int layer = 0; layer < model.num_layers; ++layer) {
    if (absl::Status status = RunLayer(layer, bucket, lazy); !status.ok()) return status;
  }
  LaunchRmsNorm(buffers_.residual, weights_->final_norm(), options_.norm_epsilon, rows,
                model.hidden_size, model.element, buffers_.normed, stream);
  return weights_->head().Run(buffers_.normed, rows, ElementType::kF32, logits());
}

absl::Status CudaSteps::RunLayer(int layer_index, const StepBucket& bucket,
                                 absl::Span<const DecodeInput> lazy) {
  const LlamaLayer& layer = weights_->layer(layer_index);
  const ModelShape& model = options_.shape.model;
  const int rows = bucket.items;
  const cudaStream_t stream = stream_->get();
  const DeviceItems items = tables_->items(layer_index, rows);
  const DecodeBuffers::Pointers& at = buffers_;

  absl::Status status = RunNormed(*layer.qkv, layer.attention_norm, rows, at.wide);
  if (!status.ok()) return status;
  const AttentionShape& heads = options_.heads;
  LaunchRotateAndWriteStep(heads, cache(), items, model.element, at.wide, at.cos, at.sin, at.q,
                           stream);
  LaunchDecodeAttention(DecodeBucketOf(options_, rows, bucket.kinds), cache(), items, layer_index,
                        at.q, {at.converted, model.element, at.lse}, scratch_.data(), stream);
  if (bucket.kinds.scored) LaunchAccumulateScores(heads, cache(), items, at.q, at.lse, stream);
  if (!lazy.empty()) MeasureLazyMass(layer_index, lazy);

  status = layer.output->Accumulate(at.converted, rows, at.residual);
  if (!status.ok()) return status;
  status = RunGated(layer, rows);
  if (!status.ok()) return status;
  return layer.down->Accumulate(at.gated, rows, at.residual);
}

absl::Status CudaSteps::RunNormed(Linear& linear, const float* norm, int rows, void* out) {
  const ModelShape& model = options_.shape.model;
  if (linear.CanFuse(rows)) {
    return linear.RunFused({buffers_.residual, norm, options_.norm_epsilon}, rows, out);
  }
  LaunchRmsNorm(buffers_.residual, norm, options_.norm_epsilon, rows, model.hidden_size,
                model.element, buffers_.normed, stream_->get());
  return linear.Run(buffers_.normed, rows, model.element, out);
}

absl::Status CudaSteps::RunGated(const LlamaLayer& layer, int rows) {
  if (layer.gate_up->CanFuse(rows)) {
    return layer.gate_up->RunFused(
        {buffers_.residual, layer.mlp_norm, options_.norm_epsilon, /*gates=*/true}, rows,
        buffers_.gated);
  }
  absl::Status status = RunNormed(*layer.gate_up, layer.mlp_norm, rows, buffers_.wide);
  if (!status.ok()) return status;
  LaunchSwiGlu(options_.shape.model.element, buffers_.wide, rows, options_.shape.ffn_size,
               buffers_.gated, stream_->get());
  return absl::OkStatus();
}

// ---- What comes back ----------------------------------------------------------------------------

/// Of sinks and of recent tokens, one behind the other.
double* CudaSteps::MassOf(int row, int layer) const {
  auto* masses = reinterpret_cast<double*>(measured_.data() + Rounded(CountBytes(options_.rows)));
  return masses + 2 * (static_cast<size_t>(row) * options_.shape.model.num_layers + layer);
}

void CudaSteps::MeasureLazyMass(int layer, absl::Span<const DecodeInput> inputs) {
  const AttentionShape& heads = options_.heads;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].lazy_test == nullptr) continue;
    const LazyTest& test = *inputs[i].lazy_test;
    const DecodeInput::Layer& of_layer = inputs[i].layers[layer];
    const TokenTarget target = of_layer.targets[0].After(inputs[i].StepsSince(of_layer));
    const int n = LiveSlots({of_layer.view, {&target, 1}}, 0), sinks = std::min(test.sinks, n);
    const int recent = std::min(test.recent, n - sinks), row = tables_->row(i);
    const float* q = buffers_.q + static_cast<size_t>(row) * heads.num_q_heads * heads.head_dim;
    const float* lse = buffers_.lse + static_cast<size_t>(row) * heads.num_q_heads;
    double* mass = MassOf(row, layer);
    void* scratch = MassOf(options_.rows, 0);  // behind all of them
    const auto measure = [&](int begin, int end, double* to) {
      LaunchSlotMass(heads, cache(), tables_->segment_word(i, layer, 0), begin, end, q, lse, to,
                     scratch, stream_->get());
    };
    measure(0, sinks, mass);
    measure(n - recent, n, mass + 1);
  }
}

void CudaSteps::FetchLogits(absl::Span<const DecodeInput> inputs, float* logits_out) {
  const size_t vocab = options_.shape.model.vocab_size;
  for (size_t i = 0; i < inputs.size(); ++i) {
    stream_->Copy(logits_out + i * vocab, logits() + tables_->row(i) * vocab,
                  vocab * sizeof(float));
  }
  stream_->Synchronize();
}

/// They come with what the step is waited for.
void CudaSteps::AskCounts(absl::Span<const DecodeInput> inputs) {
  if (!tables_->kinds().distant) return;
  stream_->Copy(pinned_counts_.data(), measured_.data(), CountBytes(inputs.size()));
}

void CudaSteps::FetchMeasured(absl::Span<const DecodeInput> inputs) {
  if (tables_->kinds().distant) AddCounts(inputs);
  FetchLazyMass(inputs);
}

void CudaSteps::AddCounts(absl::Span<const DecodeInput> inputs) {
  const auto* counts = pinned_counts_.as<unsigned long long>();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].counts == nullptr) continue;
    inputs[i].counts->attended += counts[2 * tables_->row(i)];
    inputs[i].counts->skipped += counts[2 * tables_->row(i) + 1];
  }
}

void CudaSteps::FetchLazyMass(absl::Span<const DecodeInput> inputs) {
  const int layers = options_.shape.model.num_layers;
  std::vector<double> masses(2 * static_cast<size_t>(layers));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].lazy_test == nullptr) continue;
    stream_->Copy(masses.data(), MassOf(tables_->row(i), 0), masses.size() * sizeof(double));
    stream_->Synchronize();
    for (int layer = 0; layer < layers; ++layer) {
      inputs[i].lazy_mass[layer] = masses[2 * layer] + masses[2 * layer + 1];
    }
  }
}

}  // namespace ziggurat::cuda

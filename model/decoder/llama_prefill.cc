// Layer-major prefill of a packed batch of prompts.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/decoder/llama_runner.h"
#include "model/scoped_seconds.h"

namespace ziggurat {
namespace {

/// Rows of each chunk (the last may have fewer): as few chunks as `most` allows, of about equal
/// size, so that none is a remnant of a few rows that would read all weights again.
int ChunkRows(int tokens, int most) {
  const int chunks = (tokens + most - 1) / most;
  const int even = (tokens + chunks - 1) / chunks;
  return std::min(most, (even + 15) / 16 * 16);
}

}  // namespace

absl::Status LlamaRunner::CheckPrompts(absl::Span<const PrefillPrompt> prompts) const {
  if (prompts.empty()) return absl::InvalidArgumentError("a prefill batch without prompts");
  int64_t tokens = 0;
  size_t needs = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& ids = prompts[i].token_ids;
    if (ids.empty()) return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " is empty"));
    if (ids.size() > static_cast<size_t>(shape().max_context_tokens)) {
      return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " has ", ids.size(),
                                                     " tokens, the context holds ",
                                                     shape().max_context_tokens));
    }
    for (const int32_t id : ids) {
      if (id < 0 || id >= shape().vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat("token id ", id, " of prompt ", i,
                                                       " is outside the vocabulary of ",
                                                       shape().vocab_size));
      }
    }
    const CachePlan* plan = prompts[i].plan;
    if (plan == nullptr || static_cast<int>(plan->layers.size()) != shape().num_layers) {
      return absl::InternalError(
          absl::StrCat("prompt ", i, " comes without a plan for every layer"));
    }
    tokens += static_cast<int64_t>(ids.size());
    needs += PromptNeedsBytes(static_cast<int>(ids.size()), plan->needs);
  }
  if (tokens > options_.max_prefill_tokens ||
      WorkspaceBytes(static_cast<int>(tokens)) + needs > workspace_->bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a prefill batch of ", tokens, " tokens that needs ", needs,
                     " bytes besides; the workspace is for ", options_.max_prefill_tokens,
                     " tokens and has ", workspace_->bytes(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::BeginPrefill(absl::Span<const PrefillPrompt> prompts) {
  if (batch_.active) return absl::FailedPreconditionError("a prefill batch is under way");
  if (absl::Status status = CheckPrompts(prompts); !status.ok()) return status;
  UseThreads();
  batch_ = Batch();
  batch_.active = true;
  batch_.offsets = {0};
  batch_.gone.assign(prompts.size(), false);
  for (const PrefillPrompt& prompt : prompts) {
    const int length = static_cast<int>(prompt.token_ids.size());
    batch_.offsets.push_back(batch_.offsets.back() + length);
  }
  batch_.layout = PrefillLayout::Of(workspace_shape_, batch_.num_tokens());
  size_t used = batch_.layout.total_bytes;
  for (const PrefillPrompt& prompt : prompts) {
    const int length = static_cast<int>(prompt.token_ids.size());
    PromptBuffers buffers;
    used +=
        LayPromptNeeds(shape(), length, prompt.plan->needs, workspace_->base() + used, &buffers);
    batch_.prompts.emplace_back(backend_.get(), attention_shape_, element_, length, prompt.plan,
                                buffers, prompt.measures_recall);
  }
  workspace_high_water_ = std::max(workspace_high_water_, used);
  EmbedPrompts(prompts);
  return absl::OkStatus();
}

void LlamaRunner::EmbedPrompts(absl::Span<const PrefillPrompt> prompts) {
  const int hidden = shape().hidden_size;
  const size_t half = inverse_frequencies_.size();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& ids = prompts[i].token_ids;
    const size_t first = batch_.offsets[i];
    backend_->EmbedTokens(element_, weights_->embedding(), ids, hidden,
                          Part<float>(batch_.layout.residual, first, hidden));
    backend_->FillAngles(inverse_frequencies_, 0, static_cast<int>(ids.size()),
                         Part<float>(batch_.layout.cos, first, half),
                         Part<float>(batch_.layout.sin, first, half));
  }
}

const char* LlamaRunner::StageName(Stage stage) {
  constexpr const char* kNames[] = {"its projection", "its attention", "its write", "its end"};
  return kNames[static_cast<int>(stage)];
}

absl::Status LlamaRunner::CheckTurn(int layer, Stage stage) const {
  if (batch_.active && layer == batch_.next_layer && layer < shape().num_layers &&
      stage == batch_.stage) {
    return absl::OkStatus();
  }
  if (!batch_.active) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer ", layer, ", ", StageName(stage), ", while no batch is under way"));
  }
  return absl::FailedPreconditionError(absl::StrCat("layer ", layer, ", ", StageName(stage),
                                                    ", while layer ", batch_.next_layer, ", ",
                                                    StageName(batch_.stage), ", is next"));
}

void LlamaRunner::DropPrompt(int prompt) {
  if (batch_.active) batch_.gone[prompt] = true;
}

/// Runs `run(first, rows)` over the rows from next_row on of the prompts that are still there, some
/// at a time. True: next_row is 0 again, for the next stage.
absl::StatusOr<bool> LlamaRunner::ForChunks(
    PauseTest pause, absl::FunctionRef<absl::Status(int first, int rows)> run) {
  const int prompts = batch_.num_prompts();
  for (int i = 0; i < prompts; ++i) {
    if (batch_.gone[i] || batch_.offsets[i + 1] <= batch_.next_row) continue;
    int first = std::max(batch_.offsets[i], batch_.next_row);
    while (i + 1 < prompts && !batch_.gone[i + 1]) ++i;
    const int end = batch_.offsets[i + 1];
    const int chunk = ChunkRows(end - first, options_.chunk_tokens);
    while (first < end) {
      const int rows = std::min(chunk, end - first);
      if (absl::Status status = run(first, rows); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("layer ", batch_.next_layer, ": ", status.message()));
      }
      batch_.next_row = first += rows;
      if (pause()) return false;
    }
  }
  batch_.next_row = 0;
  return true;
}

absl::StatusOr<bool> LlamaRunner::AttendLayer(int layer, PauseTest pause,
                                              std::vector<LayerMeasured>* measured) {
  const bool is_projected = batch_.stage == Stage::kAttend;
  const Stage stage = is_projected ? Stage::kAttend : Stage::kProject;
  if (absl::Status status = CheckTurn(layer, stage); !status.ok()) return status;
  UseThreads();
  if (!is_projected) {
    const absl::StatusOr<bool> done = ForChunks(
        pause, [&](int first, int rows) { return Project(weights_->layer(layer), first, rows); });
    if (!done.ok() || !*done) return done;
    batch_.stage = Stage::kAttend;
  }
  const ScopedSeconds timer(&attention_seconds_);
  while (AttendPart(layer)) {
    if (pause()) return false;
  }
  for (int i = 0; i < batch_.num_prompts(); ++i) {
    if (!batch_.gone[i]) (*measured)[i] = batch_.prompts[i].Measure(layer, TensorsOf(i));
  }
  batch_.next_row = 0;
  batch_.stage = Stage::kWrite;
  return true;
}

PromptTensors LlamaRunner::TensorsOf(int prompt) const {
  const PrefillLayout& at = batch_.layout;
  const size_t dim = attention_shape_.head_dim, first = batch_.offsets[prompt];
  const size_t q_width = attention_shape_.num_q_heads * dim;
  const size_t kv_width = attention_shape_.num_kv_heads * dim;
  return {ElementPart(at.q, first, q_width), ElementPart(at.k, first, kv_width),
          ElementPart(at.v, first, kv_width),
          Part<float>(at.lse, first, attention_shape_.num_q_heads)};
}

/// Attends some of the rows from next_row on; false: none is left. Neighbouring prompts are
/// attended together, but those that attend with other layers' keys alone.
bool LlamaRunner::AttendPart(int layer) {
  int i = 0;
  const auto is_done = [&](int prompt) {
    return batch_.gone[prompt] || batch_.offsets[prompt + 1] <= batch_.next_row;
  };
  while (i < batch_.num_prompts() && is_done(i)) ++i;
  if (i == batch_.num_prompts()) return false;
  const int first = i, start = batch_.offsets[first];
  const int first_row = std::max(batch_.next_row - start, 0);
  double flops = options_.attention_part_flops * options_.threads;
  const PromptTensors at = TensorsOf(first);
  if (first_row == 0) batch_.prompts[first].Prepare(layer, at);
  int end_row = EndOfPart(first, first_row, &flops);
  batch_.next_row = start + end_row;
  if (batch_.prompts[first].NeedsDistant(layer)) {
    batch_.prompts[first].AttendDistant(layer, at, first_row, end_row);
    return true;
  }
  std::vector<int> offsets = {0, batch_.offsets[first + 1] - start};
  while (end_row == offsets.back() && flops > 0 && ++i < batch_.num_prompts()) {
    if (batch_.gone[i] || batch_.prompts[i].NeedsDistant(layer)) break;
    batch_.prompts[i].Prepare(layer, TensorsOf(i));
    end_row = offsets.back() + EndOfPart(i, 0, &flops);
    offsets.push_back(batch_.offsets[i + 1] - start);
  }
  batch_.next_row = start + end_row;
  backend_->PrefillAttention(attention_shape_, {offsets, first_row, end_row}, element_, at.q, at.k,
                             at.v, at.q, at.lse);
  return true;
}

/// A part of a prompt's attention from `first_row` on, counted in the prompt, that takes about
/// `flops`: where it ends. What it takes is subtracted. All of it where the backend does not attend
/// parts.
int LlamaRunner::EndOfPart(int prompt, int first_row, double* flops) const {
  const int tokens = batch_.prompts[prompt].tokens();
  const int step = backend_->attention_part_rows(attention_shape_);
  // A product of queries with keys and one of weights with values.
  const double of_pair = 4.0 * attention_shape_.num_q_heads * attention_shape_.head_dim;
  int end = step == 0 ? tokens : first_row;
  while (*flops > 0 && end < tokens) {
    const int next = std::min(end + step, tokens);
    *flops -= of_pair * (next - end) * (end + next) / 2;
    end = next;
  }
  return end;
}

absl::Status LlamaRunner::WriteLayer(int layer, absl::Span<const LayerWrite> writes) {
  if (absl::Status status = CheckTurn(layer, Stage::kWrite); !status.ok()) return status;
  if (static_cast<int>(writes.size()) != batch_.num_prompts()) {
    return absl::InternalError(
        absl::StrCat(writes.size(), " writes for a batch of ", batch_.num_prompts(), " prompts"));
  }
  UseThreads();
  const ScopedSeconds timer(&attention_seconds_);
  for (int i = 0; i < batch_.num_prompts(); ++i) {
    if (writes[i].view.empty()) continue;
    if (pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
    if (auto status = batch_.prompts[i].Write(TensorsOf(i), pool_, writes[i]); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("layer ", layer, ", prompt ", i, ": ",
                                                      std::string(status.message())));
    }
  }
  batch_.cosines.assign(batch_.num_prompts(), 0.0);
  batch_.stage = Stage::kFinish;
  return absl::OkStatus();
}

absl::StatusOr<bool> LlamaRunner::FinishLayer(int layer, PauseTest pause,
                                              std::vector<double>* cosines) {
  if (absl::Status status = CheckTurn(layer, Stage::kFinish); !status.ok()) return status;
  UseThreads();
  const absl::StatusOr<bool> done = ForChunks(
      pause, [&](int first, int rows) { return EndRows(weights_->layer(layer), first, rows); });
  if (!done.ok() || !*done) return done;
  *cosines = batch_.cosines;
  batch_.stage = Stage::kProject;
  ++batch_.next_layer;
  return true;
}

absl::Status LlamaRunner::Project(const LlamaLayer& layer, int first, int rows) {
  const PrefillLayout& at = batch_.layout;
  const AttentionShape& heads = attention_shape_;
  const size_t q_width = static_cast<size_t>(heads.num_q_heads) * heads.head_dim;
  const size_t kv_width = static_cast<size_t>(heads.num_kv_heads) * heads.head_dim;
  const size_t half = inverse_frequencies_.size();
  void* normed = ElementPart(at.normed);
  void* qkv = ElementPart(at.wide);
  backend_->RmsNorm(Part<float>(at.residual, first, shape().hidden_size), layer.attention_norm,
                    norm_epsilon_, rows, shape().hidden_size, element_, normed);
  if (auto status = layer.qkv->Run(normed, rows, element_, qkv); !status.ok()) return status;
  backend_->SplitAndRotate(heads, element_, qkv, Part<float>(at.cos, first, half),
                           Part<float>(at.sin, first, half), rows, element_,
                           ElementPart(at.q, first, q_width), ElementPart(at.k, first, kv_width),
                           ElementPart(at.v, first, kv_width));
  return absl::OkStatus();
}

/// Output projection and MLP of some rows.
absl::Status LlamaRunner::EndRows(const LlamaLayer& layer, int first, int rows) {
  const PrefillLayout& at = batch_.layout;
  const size_t hidden = shape().hidden_size;
  const size_t q_width =
      static_cast<size_t>(attention_shape_.num_q_heads) * attention_shape_.head_dim;
  float* residual = Part<float>(at.residual, first, hidden);
  const bool compares =
      std::any_of(batch_.prompts.begin(), batch_.prompts.end(), [](const PromptLayers& prompt) {
        return prompt.plan().importance == LayerImportance::kCosine;
      });
  if (compares) backend_->Copy(residual, rows * hidden * sizeof(float), Part<float>(at.before));
  absl::Status status = layer.output->Accumulate(ElementPart(at.q, first, q_width), rows, residual);
  if (!status.ok()) return status;
  if (compares) AddCosines(first, rows);
  return RunMlp(layer, rows, residual, ElementPart(at.normed), ElementPart(at.wide),
                ElementPart(at.gated));
}

/// Adds the share of rows [first, first + rows) to the mean cosine of the prompts that ask for it.
void LlamaRunner::AddCosines(int first, int rows) {
  const size_t hidden = shape().hidden_size;
  for (int i = 0; i < batch_.num_prompts(); ++i) {
    if (batch_.prompts[i].plan().importance != LayerImportance::kCosine) continue;
    const int begin = std::max(first, batch_.offsets[i]);
    const int end = std::min(first + rows, batch_.offsets[i + 1]);
    if (begin >= end) continue;
    const double sum = backend_->CosineSum(Part<float>(batch_.layout.before, begin - first, hidden),
                                           Part<float>(batch_.layout.residual, begin, hidden),
                                           end - begin, static_cast<int>(hidden));
    batch_.cosines[i] += sum / batch_.prompts[i].tokens();
  }
}

absl::Status LlamaRunner::SelectStored(int prompt, int layer, const KeepBest& edit,
                                       std::vector<int32_t>* kept) {
  if (!batch_.active || prompt < 0 || prompt >= batch_.num_prompts()) {
    return absl::FailedPreconditionError("no such prompt is under way");
  }
  UseThreads();
  return batch_.prompts[prompt].SelectStored(layer, edit, kept);
}

absl::Status LlamaRunner::LastAttention(int prompt, int rows, float* attention) {
  if (!batch_.active || batch_.stage != Stage::kWrite || prompt < 0 ||
      prompt >= batch_.num_prompts()) {
    return absl::FailedPreconditionError("no such prompt has just been attended");
  }
  const PromptLayers& layers = batch_.prompts[prompt];
  if (rows < 1 || rows > layers.window_rows()) {
    return absl::InvalidArgumentError(absl::StrCat("attention of the last ", rows, " tokens where ",
                                                   layers.window_rows(), " were kept"));
  }
  UseThreads();
  layers.LastAttention(TensorsOf(prompt), rows, attention);
  return absl::OkStatus();
}

absl::Status LlamaRunner::FinishPrefill(float* logits) {
  if (!batch_.active || batch_.next_layer != shape().num_layers) {
    return absl::FailedPreconditionError("prefill is not through all layers");
  }
  UseThreads();
  if (absl::Status status = LastLogits(logits); !status.ok()) return status;
  batch_ = Batch();
  return absl::OkStatus();
}

absl::Status LlamaRunner::LastLogits(float* logits) {
  const int hidden = shape().hidden_size;
  int most = std::min(batch_.num_tokens(), options_.chunk_tokens);
  if (steps_ != nullptr) most = std::min(most, steps_->rows());
  for (int first = 0; first < batch_.num_prompts(); first += most) {
    const int rows = std::min(most, batch_.num_prompts() - first);
    for (int i = 0; i < rows; ++i) {
      const int last = batch_.offsets[first + i + 1] - 1;
      backend_->RmsNorm(Part<float>(batch_.layout.residual, last, hidden), weights_->final_norm(),
                        norm_epsilon_, 1, hidden, element_,
                        ElementPart(batch_.layout.normed, i, hidden));
    }
    float* of_rows = logits + static_cast<size_t>(first) * shape().vocab_size;
    float* computed = steps_ != nullptr ? steps_->logits() : of_rows;
    absl::Status status =
        weights_->head().Run(ElementPart(batch_.layout.normed), rows, ElementType::kF32, computed);
    if (!status.ok()) return status;
    if (steps_ != nullptr) {
      backend_->Download(computed, sizeof(float) * rows * shape().vocab_size, of_rows);
    }
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

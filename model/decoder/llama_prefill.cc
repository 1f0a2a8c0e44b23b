// Layer-major prefill of a packed batch of prompts.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/decoder/layer_edit.h"
#include "model/decoder/llama_runner.h"

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
  int64_t tokens = 0, window_rows = 0;
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
    tokens += static_cast<int64_t>(ids.size());
    window_rows += std::max(prompts[i].window_rows, 0);
  }
  if (tokens > options_.max_prefill_tokens ||
      WorkspaceBytes(static_cast<int>(tokens), static_cast<int>(std::min(window_rows, tokens))) >
          workspace_->bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a prefill batch of ", tokens, " tokens and ", window_rows,
                     " window rows; the workspace is for ", options_.max_prefill_tokens,
                     " tokens and has ", workspace_->bytes(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::BeginPrefill(absl::Span<const PrefillPrompt> prompts) {
  if (batch_.active) return absl::FailedPreconditionError("a prefill batch is under way");
  if (absl::Status status = CheckPrompts(prompts); !status.ok()) return status;
  UseThreads();
  batch_.active = true;
  batch_.next_layer = 0;
  batch_.offsets = {0};
  batch_.window_offsets = {0};
  int asked_window_rows = 0;
  for (const PrefillPrompt& prompt : prompts) {
    const int length = static_cast<int>(prompt.token_ids.size());
    batch_.offsets.push_back(batch_.offsets.back() + length);
    const int rows = std::clamp(prompt.window_rows, 0, length);
    batch_.window_offsets.push_back(batch_.window_offsets.back() + rows);
    asked_window_rows += std::clamp(prompt.window_rows, 0, options_.max_prefill_tokens);
    asked_window_rows = std::min(asked_window_rows, options_.max_prefill_tokens);
  }
  batch_.layout = PrefillLayout::Of(workspace_shape_, batch_.num_tokens(), asked_window_rows);
  workspace_high_water_ = std::max(workspace_high_water_, batch_.layout.total_bytes);
  EmbedPrompts(prompts);
  return absl::OkStatus();
}

void LlamaRunner::EmbedPrompts(absl::Span<const PrefillPrompt> prompts) {
  const int hidden = shape().hidden_size;
  const int half = rotary_.width();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& ids = prompts[i].token_ids;
    for (size_t position = 0; position < ids.size(); ++position) {
      const size_t row = batch_.offsets[i] + position;
      backend_->Convert(element_, weights_->Embedding(ids[position]), hidden, ElementType::kF32,
                        Part<float>(batch_.layout.residual, row, hidden));
      rotary_.FillRow(static_cast<int>(position), Part<float>(batch_.layout.cos, row, half),
                      Part<float>(batch_.layout.sin, row, half));
    }
  }
}

absl::Status LlamaRunner::PrefillLayer(int layer, absl::Span<const LayerWrite> writes) {
  if (!batch_.active || layer != batch_.next_layer || layer >= shape().num_layers) {
    return absl::FailedPreconditionError(
        absl::StrCat("prefill of layer ", layer, " while ",
                     batch_.active ? absl::StrCat("layer ", batch_.next_layer, " is next")
                                   : std::string("no batch is under way")));
  }
  if (static_cast<int>(writes.size()) != batch_.num_prompts()) {
    return absl::InternalError(
        absl::StrCat(writes.size(), " writes for a batch of ", batch_.num_prompts(), " prompts"));
  }
  UseThreads();
  absl::Status status = RunLayer(weights_->layer(layer), writes);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("layer ", layer, ": ", status.message()));
  }
  ++batch_.next_layer;
  return absl::OkStatus();
}

absl::Status LlamaRunner::RunLayer(const LlamaLayer& layer, absl::Span<const LayerWrite> writes) {
  const int tokens = batch_.num_tokens();
  const int chunk = ChunkRows(tokens, options_.chunk_tokens);
  for (int first = 0; first < tokens; first += chunk) {
    absl::Status status = Project(layer, first, std::min(chunk, tokens - first));
    if (!status.ok()) return status;
  }
  SaveWindowQueries();
  if (absl::Status status = AttendAndWrite(writes); !status.ok()) return status;
  for (int first = 0; first < tokens; first += chunk) {
    absl::Status status = FinishLayer(layer, first, std::min(chunk, tokens - first));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::Project(const LlamaLayer& layer, int first, int rows) {
  const PrefillLayout& at = batch_.layout;
  const AttentionShape& heads = attention_shape_;
  const size_t q_width = static_cast<size_t>(heads.num_q_heads) * heads.head_dim;
  const size_t kv_width = static_cast<size_t>(heads.num_kv_heads) * heads.head_dim;
  const int half = rotary_.width();
  void* normed = ElementPart(at.normed);
  void* qkv = ElementPart(at.wide);
  backend_->RmsNorm(Part<float>(at.residual, first, shape().hidden_size),
                    layer.attention_norm.data(), norm_epsilon_, rows, shape().hidden_size, element_,
                    normed);
  if (auto status = layer.qkv->Run(normed, rows, element_, qkv); !status.ok()) return status;
  backend_->SplitAndRotate(heads, element_, qkv, Part<float>(at.cos, first, half),
                           Part<float>(at.sin, first, half), rows, element_,
                           ElementPart(at.q, first, q_width), ElementPart(at.k, first, kv_width),
                           ElementPart(at.v, first, kv_width));
  return absl::OkStatus();
}

/// Attention overwrites the queries; a statistic needs the last ones of each prompt.
void LlamaRunner::SaveWindowQueries() {
  const size_t q_width =
      static_cast<size_t>(attention_shape_.num_q_heads) * attention_shape_.head_dim;
  for (int i = 0; i < batch_.num_prompts(); ++i) {
    const int rows = batch_.window_offsets[i + 1] - batch_.window_offsets[i];
    if (rows == 0) continue;
    std::memcpy(ElementPart(batch_.layout.window_q, batch_.window_offsets[i], q_width),
                ElementPart(batch_.layout.q, batch_.offsets[i + 1] - rows, q_width),
                rows * q_width * element_bytes_);
  }
}

absl::Status LlamaRunner::AttendAndWrite(absl::Span<const LayerWrite> writes) {
  const ScopedSeconds timer(&attention_seconds_);
  const PrefillLayout& at = batch_.layout;
  const AttentionShape& heads = attention_shape_;
  const size_t q_width = static_cast<size_t>(heads.num_q_heads) * heads.head_dim;
  const size_t kv_width = static_cast<size_t>(heads.num_kv_heads) * heads.head_dim;
  backend_->PrefillAttention(heads, {batch_.offsets}, element_, ElementPart(at.q),
                             ElementPart(at.k), ElementPart(at.v), ElementPart(at.q),
                             Part<float>(at.lse));
  for (int i = 0; i < batch_.num_prompts(); ++i) {
    if (writes[i].view.empty()) continue;
    if (pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
    AttendedPrompt prompt;
    prompt.tokens = batch_.offsets[i + 1] - batch_.offsets[i];
    prompt.window_rows = batch_.window_offsets[i + 1] - batch_.window_offsets[i];
    prompt.window_q = ElementPart(at.window_q, batch_.window_offsets[i], q_width);
    prompt.lse = Part<float>(at.lse, batch_.offsets[i], heads.num_q_heads);
    prompt.k = ElementPart(at.k, batch_.offsets[i], kv_width);
    prompt.v = ElementPart(at.v, batch_.offsets[i], kv_width);
    prompt.scores = Part<float>(at.scores);
    prompt.selection = Part<int32_t>(at.selection);
    absl::Status status = ApplyLayerEdit(*backend_, heads, element_, pool_, prompt, writes[i]);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("prompt ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::FinishLayer(const LlamaLayer& layer, int first, int rows) {
  const PrefillLayout& at = batch_.layout;
  const size_t q_width =
      static_cast<size_t>(attention_shape_.num_q_heads) * attention_shape_.head_dim;
  float* residual = Part<float>(at.residual, first, shape().hidden_size);
  absl::Status status = layer.output->Accumulate(ElementPart(at.q, first, q_width), rows, residual);
  if (!status.ok()) return status;
  return RunMlp(layer, rows, residual, ElementPart(at.normed), ElementPart(at.wide),
                ElementPart(at.gated));
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
  const int most = std::min(batch_.num_tokens(), options_.chunk_tokens);
  for (int first = 0; first < batch_.num_prompts(); first += most) {
    const int rows = std::min(most, batch_.num_prompts() - first);
    for (int i = 0; i < rows; ++i) {
      const int last = batch_.offsets[first + i + 1] - 1;
      backend_->RmsNorm(Part<float>(batch_.layout.residual, last, hidden),
                        weights_->final_norm().data(), norm_epsilon_, 1, hidden, element_,
                        ElementPart(batch_.layout.normed, i, hidden));
    }
    absl::Status status =
        weights_->head().Run(ElementPart(batch_.layout.normed), rows, ElementType::kF32,
                             logits + static_cast<size_t>(first) * shape().vocab_size);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

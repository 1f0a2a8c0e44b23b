// One decode step: a batch of all running sequences, one token each, over their block tables.
#include "absl/strings/str_cat.h"
#include "model/decoder/llama_runner.h"

namespace ziggurat {

absl::Status LlamaRunner::CheckInputs(absl::Span<const DecodeInput> inputs) const {
  if (pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DecodeInput& input = inputs[i];
    if (input.token_id < 0 || input.token_id >= shape().vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", input.token_id, " of sequence ",
                                                     i, " is outside the vocabulary of ",
                                                     shape().vocab_size));
    }
    if (input.position < 0 || input.position >= shape().max_context_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("position ", input.position, " of sequence ",
                                                     i, " is outside the context of ",
                                                     shape().max_context_tokens));
    }
    if (static_cast<int>(input.layers.size()) != shape().num_layers) {
      return absl::InternalError(absl::StrCat("sequence ", i, " has ", input.layers.size(), " of ",
                                              shape().num_layers, " layers"));
    }
    for (const DecodeInput::Layer& layer : input.layers) {
      if (layer.segment < 0 || layer.segment >= static_cast<int>(layer.view.size()) ||
          layer.slot < 0 || layer.slot >= layer.view[layer.segment].num_slots) {
        return absl::InternalError(absl::StrCat("sequence ", i, " has no slot ", layer.slot,
                                                " in its segment ", layer.segment));
      }
      const SegmentView& target = layer.view[layer.segment];
      if (target.num_kv_heads != shape().num_kv_heads ||
          target.keys.blocks != target.values.blocks) {
        return absl::InternalError(absl::StrCat(
            "segment ", layer.segment, " of sequence ", i,
            " does not hold keys and values of all heads, so it cannot be appended to"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaRunner::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  if (inputs.empty()) return absl::OkStatus();
  if (absl::Status status = CheckInputs(inputs); !status.ok()) return status;
  UseThreads();
  const int rows = static_cast<int>(inputs.size());
  const int hidden = shape().hidden_size;
  const int half = rotary_.width();
  const DecodeBuffers::Pointers buffers = decode_buffers_.For(workspace_shape_, rows);
  items_.resize(inputs.size());
  segments_.resize(inputs.size());
  slots_.resize(inputs.size());
  for (int i = 0; i < rows; ++i) {
    backend_->Convert(element_, weights_->Embedding(inputs[i].token_id), hidden, ElementType::kF32,
                      buffers.residual + static_cast<size_t>(i) * hidden);
    rotary_.FillRow(inputs[i].position, buffers.cos + static_cast<size_t>(i) * half,
                    buffers.sin + static_cast<size_t>(i) * half);
  }
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    if (absl::Status status = DecodeLayer(layer, inputs, buffers); !status.ok()) return status;
  }
  backend_->RmsNorm(buffers.residual, weights_->final_norm().data(), norm_epsilon_, rows, hidden,
                    element_, buffers.normed);
  return weights_->head().Run(buffers.normed, rows, ElementType::kF32, logits);
}

absl::Status LlamaRunner::DecodeLayer(int layer_index, absl::Span<const DecodeInput> inputs,
                                      const DecodeBuffers::Pointers& buffers) {
  const LlamaLayer& layer = weights_->layer(layer_index);
  const AttentionShape& heads = attention_shape_;
  const int rows = static_cast<int>(inputs.size());
  for (int i = 0; i < rows; ++i) {
    const DecodeInput::Layer& of_layer = inputs[i].layers[layer_index];
    items_[i].segments = of_layer.view;
    segments_[i] = of_layer.segment;
    slots_[i] = of_layer.slot;
  }

  backend_->RmsNorm(buffers.residual, layer.attention_norm.data(), norm_epsilon_, rows,
                    shape().hidden_size, element_, buffers.normed);
  if (auto status = layer.qkv->Run(buffers.normed, rows, element_, buffers.wide); !status.ok()) {
    return status;
  }
  backend_->SplitAndRotate(heads, element_, buffers.wide, buffers.cos, buffers.sin, rows,
                           ElementType::kF32, buffers.q, buffers.k, buffers.v);
  {
    const ScopedSeconds timer(&attention_seconds_);
    backend_->WriteStep(heads, items_, segments_, slots_, buffers.k, buffers.v, pool_);
    backend_->DecodeAttention(heads, items_, buffers.q, pool_, buffers.attended, nullptr);
  }
  const void* attended = buffers.attended;
  if (element_ != ElementType::kF32) {
    const size_t count = static_cast<size_t>(rows) * heads.num_q_heads * heads.head_dim;
    backend_->Convert(ElementType::kF32, buffers.attended, count, element_, buffers.converted);
    attended = buffers.converted;
  }
  if (auto status = layer.output->Accumulate(attended, rows, buffers.residual); !status.ok()) {
    return status;
  }
  return RunMlp(layer, rows, buffers.residual, buffers.normed, buffers.wide, buffers.gated);
}

}  // namespace ziggurat

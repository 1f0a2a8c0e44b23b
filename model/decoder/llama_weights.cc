#include "model/decoder/llama_weights.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "model/absl_view.h"
#include "model/checkpoint/tensor_conversion.h"
#include "model/checkpoint/weights_layout.h"
#include "model/decoder/head_padding.h"
#include "model/input_file.h"

namespace ziggurat {
namespace {

/// Elements of one piece of a conversion that threads share.
constexpr int64_t kConversionElements = int64_t{1} << 20;

/// Reads the weights of one checkpoint in one element type.
class WeightReader {
 public:
  WeightReader(const ModelConfig& config, const Checkpoint& checkpoint, ElementType element)
      : config_(config),
        checkpoint_(checkpoint),
        element_(element),
        specs_(ExpectedWeights(config)) {}

  /// The weights whose names begin like that are read soon.
  void ReadAhead(std::string_view prefix) const {
    for (const WeightSpec& spec : specs_) {
      if (!absl::StartsWith(spec.name, AbslView(prefix))) continue;
      const absl::StatusOr<TensorView> view = FindWeight(config_, checkpoint_, spec.name);
      if (view.ok()) view->ReadAhead();
    }
  }

  absl::StatusOr<std::vector<float>> Vector(const std::string& name) const {
    absl::StatusOr<TensorView> view = FindWeight(config_, checkpoint_, name);
    if (!view.ok()) return view.status();
    std::vector<float> values(view->num_elements());
    absl::Status status = ConvertToF32(name, *view, absl::MakeSpan(values));
    if (!status.ok()) return InFile(checkpoint_.FileOf(*view), status);
    return values;
  }

  /// The vectors called `names`, one behind the other.
  absl::StatusOr<std::vector<float>> Bias(absl::Span<const std::string> names) const {
    std::vector<float> bias;
    for (const std::string& name : names) {
      absl::StatusOr<std::vector<float>> part = Vector(name);
      if (!part.ok()) return part.status();
      bias.insert(bias.end(), part->begin(), part->end());
    }
    return bias;
  }

  /// The matrices called `names`, one below the other, in the element type.
  absl::StatusOr<WeightMatrix> Matrix(absl::Span<const std::string> names) {
    std::vector<TensorView> parts;
    int64_t rows = 0;
    for (const std::string& name : names) {
      absl::StatusOr<TensorView> view = FindWeight(config_, checkpoint_, name);
      if (!view.ok()) return view.status();
      rows += view->shape[0];
      parts.push_back(*std::move(view));
    }
    const int64_t columns = parts[0].shape[1];
    WeightMatrix stacked(static_cast<int>(rows), static_cast<int>(columns), element_,
                         Room(static_cast<size_t>(rows * columns) * ElementBytes(element_)));
    std::byte* to = stacked.data();
    for (size_t i = 0; i < parts.size(); ++i) {
      absl::Status status = Convert(names[i], parts[i], element_, to);
      if (!status.ok()) return InFile(checkpoint_.FileOf(parts[i]), status);
      to += parts[i].num_elements() * ElementBytes(element_);
    }
    return stacked;
  }

 private:
  /// Converts in pieces of rows, shared among the threads.
  static absl::Status Convert(const std::string& name, const TensorView& view, ElementType element,
                              std::byte* out) {
    const int64_t rows = view.shape[0];
    const int64_t width = view.num_elements() / std::max<int64_t>(rows, 1);
    const int64_t piece_rows =
        std::max<int64_t>(1, kConversionElements / std::max<int64_t>(width, 1));
    const int64_t pieces = (rows + piece_rows - 1) / piece_rows;
    std::vector<absl::Status> statuses(pieces);
#pragma omp parallel for schedule(dynamic)
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * piece_rows;
      const int64_t count = std::min(piece_rows, rows - first);
      const TensorView part = view.Rows(first, count);
      const size_t size = static_cast<size_t>(count * width);
      if (element == ElementType::kF32) {
        statuses[piece] = ConvertToF32(
            name, part, absl::MakeSpan(reinterpret_cast<float*>(out) + first * width, size), &view);
      } else {
        statuses[piece] = ConvertToBf16(
            name, part, absl::MakeSpan(reinterpret_cast<uint16_t*>(out) + first * width, size),
            &view);
      }
    }
    for (const absl::Status& status : statuses) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  /// For a matrix: where the last one was, if nobody has kept that. Memory that is touched for the
  /// first time takes longer than all else that is done to a weight.
  std::shared_ptr<std::byte[]> Room(size_t bytes) {
    if (room_.use_count() != 1 || room_bytes_ < bytes) {
      room_.reset();
      room_ = AllocateAligned(bytes);
      room_bytes_ = bytes;
    }
    return room_;
  }

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  ElementType element_;
  const std::vector<WeightSpec> specs_;
  std::shared_ptr<std::byte[]> room_;
  size_t room_bytes_ = 0;
};

/// The projections `prefixes` (each a name without ".weight").
absl::StatusOr<Projection> ReadProjection(WeightReader& reader, bool has_bias,
                                          const std::vector<std::string>& prefixes) {
  std::vector<std::string> weights, biases;
  for (const std::string& prefix : prefixes) {
    weights.push_back(prefix + ".weight");
    if (has_bias) biases.push_back(prefix + ".bias");
  }
  absl::StatusOr<WeightMatrix> weight = reader.Matrix(weights);
  if (!weight.ok()) return weight.status();
  absl::StatusOr<std::vector<float>> bias = reader.Bias(biases);
  if (!bias.ok()) return bias.status();
  return Projection{*std::move(weight), *std::move(bias)};
}

/// A tied head is packed from the embedding: one reading of the file, the same storage where the
/// linear keeps its matrix as it is.
absl::Status MakeHead(const ModelConfig& config, WeightReader& reader, LinearFactory& factory,
                      const WeightMatrix& embedding, std::unique_ptr<Linear>* out) {
  const absl::StatusOr<WeightMatrix> head =
      config.tie_word_embeddings ? embedding : reader.Matrix({"lm_head.weight"});
  if (!head.ok()) return head.status();
  absl::StatusOr<std::unique_ptr<Linear>> linear = factory.Make(*head, {});
  if (!linear.ok()) return linear.status();
  *out = *std::move(linear);
  return absl::OkStatus();
}

/// Keeps a norm where the backend reads it.
absl::Status KeepNorm(const WeightReader& reader, LinearFactory& factory, const std::string& name,
                      const float** out) {
  const absl::StatusOr<std::vector<float>> values = reader.Vector(name);
  if (!values.ok()) return values.status();
  WeightMatrix norm(1, static_cast<int>(values->size()), ElementType::kF32);
  std::copy(values->begin(), values->end(), reinterpret_cast<float*>(norm.data()));
  const absl::StatusOr<const void*> kept = factory.Keep(norm);
  if (!kept.ok()) return kept.status();
  *out = static_cast<const float*>(*kept);
  return absl::OkStatus();
}

absl::Status LoadLayer(const ModelConfig& config, WeightReader& reader, LinearFactory& factory,
                       const HeadPadding& heads, int index, LlamaLayer* layer) {
  const auto name = [index](std::string_view suffix) { return LayerWeightName(index, suffix); };
  const auto read_norm = [&](std::string_view suffix, const float** out) {
    return KeepNorm(reader, factory, name(suffix), out);
  };
  const auto make_fused = [&](bool has_bias, std::initializer_list<std::string_view> suffixes,
                              std::unique_ptr<Linear>* out,
                              void (HeadPadding::*pad)(Projection&) const = nullptr) {
    std::vector<std::string> prefixes;
    for (const std::string_view suffix : suffixes) prefixes.push_back(name(suffix));
    absl::StatusOr<Projection> projection = ReadProjection(reader, has_bias, prefixes);
    if (!projection.ok()) return projection.status();
    if (pad != nullptr) (heads.*pad)(*projection);
    absl::StatusOr<std::unique_ptr<Linear>> linear =
        factory.Make(projection->weight, projection->bias);
    if (!linear.ok()) return linear.status();
    *out = *std::move(linear);
    return absl::OkStatus();
  };
  absl::Status status = read_norm("input_layernorm.weight", &layer->attention_norm);
  if (!status.ok()) return status;
  status = make_fused(config.qkv_bias, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                      &layer->qkv, &HeadPadding::PadQkv);
  if (!status.ok()) return status;
  status = make_fused(config.o_bias, {"self_attn.o_proj"}, &layer->output, &HeadPadding::PadOutput);
  if (!status.ok()) return status;
  status = read_norm("post_attention_layernorm.weight", &layer->mlp_norm);
  if (!status.ok()) return status;
  status = make_fused(config.mlp_bias, {"mlp.gate_proj", "mlp.up_proj"}, &layer->gate_up);
  if (!status.ok()) return status;
  return make_fused(config.mlp_bias, {"mlp.down_proj"}, &layer->down);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LlamaWeights>> LlamaWeights::Load(
    const ModelConfig& config, const Checkpoint& checkpoint, ElementType element,
    std::unique_ptr<LinearFactory> factory) {
  if (absl::Status status = CheckWeights(config, checkpoint); !status.ok()) return status;
  WeightReader reader(config, checkpoint, element);
  auto weights = std::unique_ptr<LlamaWeights>(new LlamaWeights);
  weights->factory_ = std::move(factory);

  for (const std::string_view first : {"model.embed_tokens.", "lm_head."}) reader.ReadAhead(first);
  absl::StatusOr<WeightMatrix> embedding = reader.Matrix({"model.embed_tokens.weight"});
  if (!embedding.ok()) return embedding.status();
  absl::StatusOr<const void*> kept = weights->factory_->Keep(*embedding);
  if (!kept.ok()) return kept.status();
  weights->embedding_ = *kept;

  reader.ReadAhead(LayerWeightName(0, ""));
  // The largest matrix comes first, so its room does for all others.
  absl::Status status = MakeHead(config, reader, *weights->factory_, *embedding, &weights->head_);
  if (!status.ok()) return status;
  weights->layers_.resize(config.num_layers);
  const HeadPadding heads(config);
  for (int i = 0; i < config.num_layers; ++i) {
    reader.ReadAhead(LayerWeightName(i + 1, ""));
    status = LoadLayer(config, reader, *weights->factory_, heads, i, &weights->layers_[i]);
    if (!status.ok()) return status;
  }
  status = KeepNorm(reader, *weights->factory_, "model.norm.weight", &weights->final_norm_);
  if (!status.ok()) return status;
  return weights;
}

}  // namespace ziggurat

#include "model/checkpoint/weights_layout.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/absl_view.h"

namespace ziggurat {

namespace {

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kOutputHead = "lm_head.weight";

void AddLinear(const std::string& name, int64_t outputs, int64_t inputs, bool bias,
               std::vector<WeightSpec>& specs) {
  specs.push_back({name + ".weight", {outputs, inputs}});
  if (bias) specs.push_back({name + ".bias", {outputs}});
}

/// A projection to the channels of `heads` heads.
void AddHeads(const ModelConfig& config, const std::string& name, int64_t heads,
              std::vector<WeightSpec>& specs) {
  const int64_t stored = heads * config.head_dim, padded = heads * config.padded_head_dim();
  specs.push_back({name + ".weight", {stored, config.hidden_size}, {padded, config.hidden_size}});
  if (config.qkv_bias) specs.push_back({name + ".bias", {stored}, {padded}});
}

void AddLayer(const ModelConfig& config, int layer, std::vector<WeightSpec>& specs) {
  const int64_t hidden = config.hidden_size;
  const auto name = [layer](std::string_view suffix) { return LayerWeightName(layer, suffix); };
  specs.push_back({name("input_layernorm.weight"), {hidden}});
  AddHeads(config, name("self_attn.q_proj"), config.num_q_heads, specs);
  AddHeads(config, name("self_attn.k_proj"), config.num_kv_heads, specs);
  AddHeads(config, name("self_attn.v_proj"), config.num_kv_heads, specs);
  const int64_t padded = int64_t{1} * config.num_q_heads * config.padded_head_dim();
  specs.push_back({name("self_attn.o_proj.weight"), {hidden, config.q_size()}, {hidden, padded}});
  if (config.o_bias) specs.push_back({name("self_attn.o_proj.bias"), {hidden}});
  specs.push_back({name("post_attention_layernorm.weight"), {hidden}});
  AddLinear(name("mlp.gate_proj"), config.intermediate_size, hidden, config.mlp_bias, specs);
  AddLinear(name("mlp.up_proj"), config.intermediate_size, hidden, config.mlp_bias, specs);
  AddLinear(name("mlp.down_proj"), hidden, config.intermediate_size, config.mlp_bias, specs);
}

/// Whether embedding and head are tied, and the checkpoint holds both.
bool HasBothEnds(const ModelConfig& config, const Checkpoint& checkpoint) {
  return config.tie_word_embeddings && checkpoint.Find(kEmbedding) != nullptr &&
         checkpoint.Find(kOutputHead) != nullptr;
}

/// The tensor that holds the weight `name`; nullptr: none does.
const TensorView* Resolve(const ModelConfig& config, const Checkpoint& checkpoint,
                          std::string_view name) {
  const bool tied = config.tie_word_embeddings && (name == kEmbedding || name == kOutputHead);
  if (!tied) return checkpoint.Find(name);
  const TensorView* embedding = checkpoint.Find(kEmbedding);
  return embedding != nullptr ? embedding : checkpoint.Find(kOutputHead);
}

/// An output head of another shape than the embedding cannot be tied to it.
std::optional<std::string> CheckTiedShapes(const ModelConfig& config,
                                           const Checkpoint& checkpoint) {
  if (!HasBothEnds(config, checkpoint)) return std::nullopt;
  const TensorView& head = *checkpoint.Find(kOutputHead);
  const TensorView& embedding = *checkpoint.Find(kEmbedding);
  if (head.shape == embedding.shape) return std::nullopt;
  return absl::StrCat(AbslView(kOutputHead), " has the shape ", head.ShapeString(),
                      ", but tie_word_embeddings makes it ", AbslView(kEmbedding),
                      " with the shape ", embedding.ShapeString());
}

bool IsHarmless(const ModelConfig& config, std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  return config.tie_word_embeddings && name == kOutputHead;
}

/// At most this many are listed of each kind; the rest is counted.
void AppendProblems(absl::string_view title, const std::vector<std::string>& problems,
                    std::string& text) {
  constexpr size_t kListed = 5;
  if (problems.empty()) return;
  const size_t listed = std::min(kListed, problems.size());
  absl::StrAppend(
      &text, text.empty() ? "" : "; ", title, " ",
      absl::StrJoin(problems.begin(), problems.begin() + static_cast<long>(listed), ", "));
  if (problems.size() > listed) absl::StrAppend(&text, " and ", problems.size() - listed, " more");
}

}  // namespace

std::string LayerWeightName(int layer, std::string_view suffix) {
  return absl::StrCat("model.layers.", layer, ".", AbslView(suffix));
}

size_t WeightSpec::StoredBytes(ElementType element) const {
  size_t elements = 1;
  for (const int64_t extent : padded_shape) elements *= static_cast<size_t>(extent);
  return elements * (shape.size() > 1 ? ElementBytes(element) : sizeof(float));
}

std::vector<WeightSpec> ExpectedWeights(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<WeightSpec> specs;
  specs.push_back({std::string(kEmbedding), {config.vocab_size, hidden}});
  for (int layer = 0; layer < config.num_layers; ++layer) AddLayer(config, layer, specs);
  specs.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings) {
    specs.push_back({std::string(kOutputHead), {config.vocab_size, hidden}});
  }
  return specs;
}

absl::StatusOr<TensorView> FindWeight(const ModelConfig& config, const Checkpoint& checkpoint,
                                      std::string_view name) {
  if (const TensorView* tensor = Resolve(config, checkpoint, name)) return *tensor;
  return absl::NotFoundError(
      absl::StrCat(checkpoint.dir().string(), ": there is no tensor \"", AbslView(name), "\""));
}

bool HasHeadOfItsOwn(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (!HasBothEnds(config, checkpoint)) return false;
  const TensorView& head = *checkpoint.Find(kOutputHead);
  const TensorView& embedding = *checkpoint.Find(kEmbedding);
  if (head.shape != embedding.shape) return false;  // CheckWeights says so
  if (head.dtype != embedding.dtype) return true;
  head.ReadAhead();
  embedding.ReadAhead();
  return std::memcmp(head.data, embedding.data, head.bytes) != 0;
}

absl::StatusOr<ModelFiles> OpenModel(const std::filesystem::path& dir) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(dir);
  if (!config.ok()) return config.status();
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  if (HasHeadOfItsOwn(*config, *checkpoint)) config->tie_word_embeddings = false;
  return ModelFiles{*std::move(config), *std::move(checkpoint)};
}

absl::Status CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  std::vector<std::string> unused;
  std::set<std::string, std::less<>> expected;
  for (const WeightSpec& spec : ExpectedWeights(config)) {
    expected.insert(spec.name);
    const TensorView* tensor = Resolve(config, checkpoint, spec.name);
    if (tensor == nullptr) {
      missing.push_back(spec.name);
    } else if (tensor->shape != spec.shape) {
      wrong.push_back(absl::StrCat(spec.name, " has the shape ", tensor->ShapeString(),
                                   ", config.json asks for [", absl::StrJoin(spec.shape, ", "),
                                   "]"));
    } else if (tensor->dtype != DType::kF32 && tensor->dtype != DType::kF16 &&
               tensor->dtype != DType::kBf16) {
      wrong.push_back(absl::StrCat(spec.name, " has dtype ", AbslView(DTypeName(tensor->dtype)),
                                   ", supported are F32, F16 and BF16"));
    }
  }
  if (std::optional<std::string> head = CheckTiedShapes(config, checkpoint)) wrong.push_back(*head);
  for (const std::string& name : checkpoint.Names()) {
    if (!expected.contains(name) && !IsHarmless(config, name)) unused.push_back(name);
  }
  if (missing.empty() && wrong.empty() && unused.empty()) return absl::OkStatus();
  std::string text;
  AppendProblems("missing:", missing, text);
  AppendProblems("wrong:", wrong, text);
  AppendProblems("not part of this model:", unused, text);
  return absl::InvalidArgumentError(
      absl::StrCat(checkpoint.dir().string(), ": the weights do not fit config.json: ", text));
}

}  // namespace ziggurat

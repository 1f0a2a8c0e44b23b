#include "tests/model/plain_llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/tensor_conversion.h"

namespace ziggurat::testing {
namespace {

template <typename T>
T Require(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::abort();
  }
  return *std::move(result);
}

/// Matrices that keep activations near 1, norms near 1, biases large enough to be missed.
std::vector<float> RandomWeight(const WeightSpec& spec, std::mt19937& random) {
  size_t count = 1;
  for (const int64_t size : spec.shape) count *= size;
  const bool is_norm = spec.name.find("norm") != std::string::npos;
  const double spread =
      spec.shape.size() == 2 ? 1.2 / std::sqrt(static_cast<double>(spec.shape[1])) : 0.2;
  std::normal_distribution<double> normal(is_norm ? 1.0 : 0.0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

/// To multiples of 2^-10 below 2: eleven bits, none of them subnormal.
void RoundToF16(std::vector<float>& values) {
  for (float& value : values) {
    value = std::clamp(std::round(value * 1024), -2047.0f, 2047.0f) / 1024;
  }
}

/// Of a value that RoundToF16 made.
uint16_t F16Bits(float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (value == 0) return static_cast<uint16_t>(sign);
  int exponent = 0;
  const float fraction = std::frexp(std::abs(value), &exponent);
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 |
                               static_cast<int>((2 * fraction - 1) * 1024));
}

/// A safetensors file in the making.
class TensorFile {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape,
           const std::vector<float>& values, bool is_f16) {
    const size_t begin = data_.size();
    for (const float value : values) {
      if (is_f16) {
        Append(F16Bits(value));
      } else {
        Append(value);
      }
    }
    absl::StrAppend(&header_, header_.size() > 1 ? "," : "", "\"", name, R"(":{"dtype":")",
                    is_f16 ? "F16" : "F32", R"(","shape":[)", absl::StrJoin(shape, ","),
                    R"(],"data_offsets":[)", begin, ",", data_.size(), "]}");
  }
  void Write(const std::filesystem::path& path) const {
    std::string header = header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t header_bytes = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
    file << header << data_;
  }

 private:
  template <typename T>
  void Append(T value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string header_ = "{", data_;
};

}  // namespace

void WriteTinyModel(const std::filesystem::path& dir, const std::string& config_json, uint64_t seed,
                    const TinyFiles& files) {
  const ModelConfig config = Require(ParseModelConfig(config_json, "config.json"));
  WriteTinyModel(dir, config_json, ExpectedWeights(config), seed, files);
}

void WriteTinyModel(const std::filesystem::path& dir, const std::string& config_json,
                    const std::vector<WeightSpec>& weights, uint64_t seed, const TinyFiles& files) {
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << config_json;
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<TensorFile> shards(files.shards);
  std::string weight_map;
  size_t next = 0;
  for (const WeightSpec& spec : weights) {
    std::vector<float> values = RandomWeight(spec, random);
    if (files.fits_f16) RoundToF16(values);
    const bool renamed = files.head_is_embedding && spec.name == "model.embed_tokens.weight";
    const std::string name = renamed ? "lm_head.weight" : spec.name;
    const size_t shard = next++ % shards.size();
    shards[shard].Add(name, spec.shape, values, files.is_f16);
    absl::StrAppend(&weight_map, weight_map.empty() ? "" : ",", "\"", name, R"(":"shard-)", shard,
                    R"(.safetensors")");
  }
  if (files.shards == 1) return shards[0].Write(dir / "model.safetensors");
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].Write(dir / absl::StrCat("shard-", i, ".safetensors"));
  }
  std::ofstream(dir / "model.safetensors.index.json") << R"({"weight_map":{)" << weight_map << "}}";
}

PlainLlama::PlainLlama(const std::filesystem::path& dir)
    : PlainLlama(Require(LoadModelConfig(dir)), dir) {}

PlainLlama::PlainLlama(const ModelConfig& config, const std::filesystem::path& dir)
    : config_(config) {
  const Checkpoint checkpoint = Require(Checkpoint::Open(dir));
  for (const std::string& name : checkpoint.Names()) {
    const TensorView view = *checkpoint.Find(name);
    std::vector<float> values(view.num_elements());
    if (!ConvertToF32(name, view, absl::MakeSpan(values)).ok()) std::abort();
    weights_[name].assign(values.begin(), values.end());
  }
  const RopeScaling& scaling = config_.rope_scaling;
  for (int i = 0; i < config_.head_dim / 2; ++i) {
    double frequency = std::pow(config_.rope_theta, -2.0 * i / config_.head_dim);
    if (scaling.kind == RopeScaling::Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == RopeScaling::Kind::kLlama3) {
      // Turns that this pair makes over the original context; few turns: stretched, many: kept.
      const double turns =
          scaling.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
      const double kept =
          (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      const double ramp = std::min(1.0, std::max(0.0, kept));
      frequency = ramp * frequency + (1 - ramp) * frequency / scaling.factor;
    }
    frequencies_.push_back(frequency);
  }
}

std::vector<double> PlainLlama::Product(const std::string& prefix, const std::vector<double>& x,
                                        int out) const {
  const std::vector<double>& weight = W(prefix + ".weight");
  std::vector<double> y(out, 0.0);
  if (Has(prefix + ".bias")) y = W(prefix + ".bias");
  for (int o = 0; o < out; ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
  }
  return y;
}

std::vector<double> PlainLlama::Norm(const std::string& name, const std::vector<double>& x) const {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / x.size() + config_.rms_norm_eps);
  std::vector<double> y = W(name);
  for (size_t i = 0; i < x.size(); ++i) y[i] *= x[i] * scale;
  return y;
}

void PlainLlama::Rotate(std::vector<double>& heads, int position) const {
  const int half = config_.head_dim / 2;
  for (size_t head = 0; head < heads.size(); head += config_.head_dim) {
    for (int i = 0; i < half; ++i) {
      const double a = heads[head + i], b = heads[head + half + i];
      const double c = std::cos(position * frequencies_[i]);
      const double s = std::sin(position * frequencies_[i]);
      heads[head + i] = a * c - b * s;
      heads[head + half + i] = b * c + a * s;
    }
  }
}

std::vector<double> PlainLlama::Attend(const Rows& q, const Rows& k, const Rows& v, int layer,
                                       int row, int prompt, const Visibility& sees,
                                       Probabilities* seen) const {
  const int size = config_.head_dim, group = config_.num_q_heads / config_.num_kv_heads;
  std::vector<double> out(q[row].size(), 0.0);
  for (int h = 0; h < config_.num_q_heads; ++h) {
    const int g = h / group;
    std::vector<double> weight(row + 1, 0.0);
    double sum = 0;
    for (int j = 0; j <= row; ++j) {
      if (row >= prompt && sees && !sees(layer, g, row, j)) continue;
      double score = 0;
      for (int i = 0; i < size; ++i) score += q[row][h * size + i] * k[j][g * size + i];
      weight[j] = std::exp(score / std::sqrt(static_cast<double>(size)));
      sum += weight[j];
    }
    for (int j = 0; j <= row; ++j) {
      weight[j] /= sum;
      for (int i = 0; i < size; ++i) out[h * size + i] += weight[j] * v[j][g * size + i];
    }
    if (seen != nullptr) (*seen)[h].push_back(std::move(weight));
  }
  return out;
}

namespace {

double Cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0, squares_a = 0, squares_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    squares_a += a[i] * a[i];
    squares_b += b[i] * b[i];
  }
  return dot / std::sqrt(squares_a * squares_b);
}

}  // namespace

std::vector<std::vector<float>> PlainLlama::Forward(const std::vector<int32_t>& ids) const {
  return Forward(ids, static_cast<int>(ids.size()), nullptr, nullptr);
}

std::vector<std::vector<float>> PlainLlama::Forward(const std::vector<int32_t>& ids, int prompt,
                                                    const Observer& observe, const Visibility& sees,
                                                    const RowObserver& observe_row,
                                                    Measured* measured) const {
  const int n = static_cast<int>(ids.size());
  const int hidden = config_.hidden_size;
  Rows x(n);
  for (int r = 0; r < n; ++r) {
    const double* row = W("model.embed_tokens.weight").data() + size_t(ids[r]) * hidden;
    x[r].assign(row, row + hidden);
  }
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    Rows q(n), k(n), v(n);
    for (int r = 0; r < n; ++r) {
      const auto normed = Norm(prefix + "input_layernorm.weight", x[r]);
      q[r] = Product(prefix + "self_attn.q_proj", normed, config_.q_size());
      k[r] = Product(prefix + "self_attn.k_proj", normed, config_.kv_size());
      v[r] = Product(prefix + "self_attn.v_proj", normed, config_.kv_size());
      Rotate(q[r], r);
      Rotate(k[r], r);
    }
    Probabilities seen(config_.num_q_heads);
    for (int r = 0; r < n; ++r) {
      if (r == prompt && observe) observe(layer, seen);
      Probabilities of_row(config_.num_q_heads);
      const auto attended = Attend(q, k, v, layer, r, prompt, sees, r < prompt ? &seen : &of_row);
      if (r >= prompt && observe_row) {
        std::vector<std::vector<double>> attention;
        for (auto& head : of_row) attention.push_back(std::move(head.front()));
        observe_row(layer, r, attention);
      }
      const auto projected = Product(prefix + "self_attn.o_proj", attended, hidden);
      const std::vector<double> before = x[r];
      for (int i = 0; i < hidden; ++i) x[r][i] += projected[i];
      if (measured != nullptr) {
        measured->cosines.resize(config_.num_layers);
        measured->cosines[layer] += Cosine(before, x[r]) / n;
      }
      const auto normed = Norm(prefix + "post_attention_layernorm.weight", x[r]);
      const auto gate = Product(prefix + "mlp.gate_proj", normed, config_.intermediate_size);
      auto up = Product(prefix + "mlp.up_proj", normed, config_.intermediate_size);
      for (size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
      const auto down = Product(prefix + "mlp.down_proj", up, hidden);
      for (int i = 0; i < hidden; ++i) x[r][i] += down[i];
    }
  }
  std::vector<std::vector<float>> logits;
  for (int r = 0; r < n; ++r) {
    const auto row = Product(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head",
                             Norm("model.norm.weight", x[r]), config_.vocab_size);
    logits.emplace_back(row.begin(), row.end());
  }
  return logits;
}

}  // namespace ziggurat::testing

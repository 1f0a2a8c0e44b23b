// A Llama-family model as one would write it on a page: double, no cache, no batching. What the
// decoder is checked against on shapes for which no golden output exists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/checkpoint/model_config.h"
#include "model/checkpoint/weights_layout.h"

namespace ziggurat::testing {

/// How the weights of a tiny model lie in its folder.
struct TinyFiles {
  bool fits_f16 = false;           ///< values that f16 holds as well
  bool is_f16 = false;             ///< written as f16; they must fit
  bool head_is_embedding = false;  ///< a tied embedding bears the name of the output head
  int shards = 1;
};

/// Writes a folder with `config_json` and these weights, random (deterministic in `seed`), f32 in
/// one file unless `files` says otherwise.
void WriteTinyModel(const std::filesystem::path& dir, const std::string& config_json,
                    const std::vector<WeightSpec>& weights, uint64_t seed,
                    const TinyFiles& files = {});
/// The weights that the library expects with `config_json`.
void WriteTinyModel(const std::filesystem::path& dir, const std::string& config_json, uint64_t seed,
                    const TinyFiles& files = {});

class PlainLlama {
 public:
  explicit PlainLlama(const std::filesystem::path& dir);
  /// The weights in `dir`, whatever its config.json says.
  PlainLlama(const ModelConfig& config, const std::filesystem::path& dir);

  const ModelConfig& config() const { return config_; }

  /// Whether query `query` of layer `layer` and KV head `head` sees key `key` (<= query).
  using Visibility = std::function<bool(int layer, int head, int query, int key)>;
  /// Attention of a layer: [H][query][key], 0 where not seen.
  using Probabilities = std::vector<std::vector<std::vector<double>>>;
  /// Called after each layer's attention of rows [0, prompt) and before that of the rows behind.
  using Observer = std::function<void(int layer, const Probabilities& prompt)>;

  /// Called after each row from `prompt` on: the attention of one query, [H][key].
  using RowObserver =
      std::function<void(int layer, int query, const std::vector<std::vector<double>>& attention)>;

  /// What of each layer is measured on the way, where it is not null.
  struct Measured {
    std::vector<double> cosines;  ///< mean over rows of hidden state before and after attention
  };

  /// Logits of every position, [tokens][vocab]. Rows below `prompt` see all keys before them;
  /// `observe` (may be empty) is told their attention; rows from `prompt` on see what `sees` says,
  /// and `observe_row` (may be empty) is told theirs. Layer by layer, row by row.
  std::vector<std::vector<float>> Forward(const std::vector<int32_t>& ids, int prompt,
                                          const Observer& observe, const Visibility& sees,
                                          const RowObserver& observe_row = nullptr,
                                          Measured* measured = nullptr) const;
  /// Everything sees everything before it.
  std::vector<std::vector<float>> Forward(const std::vector<int32_t>& ids) const;

 private:
  using Rows = std::vector<std::vector<double>>;

  const std::vector<double>& W(const std::string& name) const { return weights_.at(name); }
  bool Has(const std::string& name) const { return weights_.count(name) > 0; }
  std::vector<double> Product(const std::string& prefix, const std::vector<double>& x,
                              int out) const;
  std::vector<double> Norm(const std::string& name, const std::vector<double>& x) const;
  void Rotate(std::vector<double>& heads, int position) const;
  std::vector<double> Attend(const Rows& q, const Rows& k, const Rows& v, int layer, int row,
                             int prompt, const Visibility& sees, Probabilities* seen) const;

  ModelConfig config_;
  std::map<std::string, std::vector<double>> weights_;
  std::vector<double>
      frequencies_;  ///< by the formulas of Llama 3.1, not by RopeInverseFrequencies
};

}  // namespace ziggurat::testing

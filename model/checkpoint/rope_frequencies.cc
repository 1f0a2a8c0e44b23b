#include <cmath>
#include <numbers>
#include <vector>

#include "model/checkpoint/model_config.h"

namespace ziggurat {

namespace {

/// Llama 3.1: wavelengths shorter than the original context / high_freq_factor stay, those longer
/// than it / low_freq_factor are stretched by `factor`, and in between the two are blended.
double Llama3Frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = scaling.original_max_position_embeddings / wavelength;
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const ModelConfig& config) {
  std::vector<float> frequencies(static_cast<size_t>(config.padded_head_dim() / 2));
  for (size_t i = 0; i < static_cast<size_t>(config.head_dim / 2); ++i) {
    double frequency = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / config.head_dim);
    switch (config.rope_scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        frequency /= config.rope_scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = Llama3Frequency(frequency, config.rope_scaling);
        break;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace ziggurat

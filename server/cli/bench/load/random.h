// Random numbers that are the same on every machine: a seed names a load.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace ziggurat::bench {

/// The distributions of <random> may differ from library to library; these do not.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  /// A stream of its own for each of many things, such as the prompts of requests.
  Random(uint64_t seed, uint64_t stream) : bits_(seed * 0x9E3779B97F4A7C15u ^ (stream + 1)) {}

  /// [0, 1)
  double Uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  /// [low, high], both included.
  int64_t UniformInt(int64_t low, int64_t high) {
    const double span = static_cast<double>(high - low) + 1;
    return low + static_cast<int64_t>(Uniform() * span);
  }
  double Exponential(double mean) { return -mean * std::log1p(-Uniform()); }
  /// Mean 0, variance 1 (Box and Muller).
  double Normal() {
    const double radius = std::sqrt(-2 * std::log1p(-Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace ziggurat::bench

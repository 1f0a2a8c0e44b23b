// Cosines and sines of the rotary embedding.
#pragma once

#include <utility>
#include <vector>

namespace ziggurat {

/// Fills rows of cos and sin for positions. Angles are computed in double: at position 100,000 a
/// float angle would already be wrong in the third digit.
class RotaryTable {
 public:
  /// `inverse_frequencies` [head_dim / 2], radians per position.
  explicit RotaryTable(std::vector<float> inverse_frequencies)
      : inverse_frequencies_(std::move(inverse_frequencies)) {}

  int width() const { return static_cast<int>(inverse_frequencies_.size()); }
  /// cos, sin [width()] for one position.
  void FillRow(int position, float* cos, float* sin) const;

 private:
  std::vector<float> inverse_frequencies_;
};

}  // namespace ziggurat

#include "model/decoder/rotary_table.h"

#include <cmath>
#include <cstddef>

namespace ziggurat {

void RotaryTable::FillRow(int position, float* cos, float* sin) const {
  for (size_t i = 0; i < inverse_frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * inverse_frequencies_[i];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace ziggurat

// Which head sizes there are kernels for.
#pragma once

namespace ziggurat {

/// Every backend works for the multiples of 8 up to this.
constexpr int kMaxHeadDim = 256;

}  // namespace ziggurat

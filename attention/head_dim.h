// Which head sizes there are kernels for.
#pragma once

namespace ziggurat {

/// Every backend works for the multiples of kHeadDimStep up to kMaxHeadDim.
constexpr int kHeadDimStep = 8;
constexpr int kMaxHeadDim = 256;

}  // namespace ziggurat

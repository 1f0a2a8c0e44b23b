// Products by libtorch, for builds that have its oneDNN and none of their own.
#pragma once

#include <memory>

#include "model/decoder/linear.h"

namespace ziggurat {

/// at::linear in f32. Keeps the matrices that it is given. Debian's libtorch brings only the
/// reference BLAS, which is some fifty times slower than oneDNN.
std::unique_ptr<LinearFactory> MakeTorchLinearFactory();

}  // namespace ziggurat

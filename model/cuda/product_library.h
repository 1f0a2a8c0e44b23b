// Matrix products of the device: cuBLASLt's on a GPU (cublas_products.cc), a plain kernel's in the
// emulator (tests/cuda_emulator/plain_products.cc).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cuda/device.h"
#include "attention/cuda/matmul.h"

namespace ziggurat::cuda {

/// Calls are asked of the stream that it was made for, also while that records a graph.
class ProductLibrary {
 public:
  /// RESOURCE_EXHAUSTED or INTERNAL name what the library said.
  static absl::StatusOr<std::unique_ptr<ProductLibrary>> Create(Stream* stream);
  /// Device memory that it takes for itself.
  static size_t WorkspaceBytes();

  virtual ~ProductLibrary() = default;
  virtual absl::Status Run(const Product& product) = 0;
};

}  // namespace ziggurat::cuda

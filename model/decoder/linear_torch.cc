#include "model/decoder/linear_torch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "model/decoder/caught_error.h"

namespace ziggurat {
namespace {

/// The numbers at `data`, which are not copied. from_blob wants a mutable pointer.
at::Tensor MatrixAt(const void* data, int64_t rows, int64_t columns) {
  return at::from_blob(const_cast<void*>(data), {rows, columns}, at::TensorOptions(at::kFloat));
}

class TorchLinear final : public Linear {
 public:
  TorchLinear(WeightMatrix weight, const std::vector<float>& bias)
      : kept_(std::move(weight)),
        weight_(MatrixAt(kept_.data(), kept_.rows(), kept_.columns())),
        bias_(bias.empty() ? at::Tensor() : at::tensor(bias)) {}

  absl::Status Run(const void* x, int rows, ElementType out_element, void* y) override {
    if (out_element != ElementType::kF32) {
      return absl::InvalidArgumentError("libtorch's products are of f32");
    }
    return Guarded([&] { MatrixAt(y, rows, weight_.size(0)).copy_(Product(x, rows)); });
  }

  absl::Status Accumulate(const void* x, int rows, float* y) override {
    return Guarded([&] { MatrixAt(y, rows, weight_.size(0)).add_(Product(x, rows)); });
  }

 private:
  /// libtorch's exceptions end here.
  template <class Work>
  static absl::Status Guarded(Work work) {
    const at::NoGradGuard no_grad;
    try {
      work();
    } catch (const std::exception& error) {
      return CaughtError(error, "a product of libtorch");
    }
    return absl::OkStatus();
  }

  at::Tensor Product(const void* x, int rows) const {
    return at::linear(MatrixAt(x, rows, weight_.size(1)), weight_, bias_);
  }

  WeightMatrix kept_;
  at::Tensor weight_;  ///< of kept_
  at::Tensor bias_;
};

class TorchLinearFactory final : public LinearFactory {
 public:
  absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                               const std::vector<float>& bias) override {
    if (weight.element() != ElementType::kF32) {
      return absl::InvalidArgumentError("libtorch's products are of f32");
    }
    return std::make_unique<TorchLinear>(weight, bias);
  }
};

}  // namespace

std::unique_ptr<LinearFactory> MakeTorchLinearFactory() {
  return std::make_unique<TorchLinearFactory>();
}

}  // namespace ziggurat

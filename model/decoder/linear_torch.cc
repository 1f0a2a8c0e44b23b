#include "model/decoder/linear_torch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "model/decoder/caught_error.h"

namespace ziggurat {
namespace {

at::ScalarType ScalarTypeOf(ElementType element) {
  return element == ElementType::kF32 ? at::kFloat : at::kBFloat16;
}

class TorchLinear final : public Linear {
 public:
  TorchLinear(WeightMatrix weight, const std::vector<float>& bias)
      : kept_(std::move(weight)),
        weight_(at::from_blob(kept_.data(), {kept_.rows(), kept_.columns()},
                              at::TensorOptions(ScalarTypeOf(kept_.element())))) {
    if (!bias.empty()) bias_ = at::tensor(bias).to(weight_.scalar_type());
  }

  absl::Status Run(const void* x, int rows, ElementType out_element, void* y) override {
    return Guarded([&] {
      at::Tensor out =
          at::from_blob(y, {rows, weight_.size(0)}, at::TensorOptions(ScalarTypeOf(out_element)));
      out.copy_(Product(x, rows));
    });
  }

  absl::Status Accumulate(const void* x, int rows, float* y) override {
    return Guarded([&] {
      at::Tensor out = at::from_blob(y, {rows, weight_.size(0)}, at::TensorOptions(at::kFloat));
      out.add_(Product(x, rows));
    });
  }

 private:
  /// libtorch's exceptions end here.
  template <class Work>
  static absl::Status Guarded(Work work) {
    at::NoGradGuard no_grad;
    try {
      work();
    } catch (const std::exception& error) {
      return CaughtError(error, "a product of libtorch");
    }
    return absl::OkStatus();
  }

  at::Tensor Product(const void* x, int rows) const {
    // from_blob wants a mutable pointer; linear only reads it.
    const at::Tensor in = at::from_blob(const_cast<void*>(x), {rows, weight_.size(1)},
                                        at::TensorOptions(weight_.scalar_type()));
    return at::linear(in, weight_, bias_);
  }

  WeightMatrix kept_;
  at::Tensor weight_;  ///< of kept_
  at::Tensor bias_;
};

class TorchLinearFactory final : public LinearFactory {
 public:
  std::string_view name() const override { return "at::linear"; }
  absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                               const std::vector<float>& bias) override {
    return std::make_unique<TorchLinear>(weight, bias);
  }
};

}  // namespace

std::unique_ptr<LinearFactory> MakeTorchLinearFactory() {
  return std::make_unique<TorchLinearFactory>();
}

}  // namespace ziggurat

// Our own products over weights in bf16.
#include <ATen/ATen.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/packed_product.h"
#include "model/decoder/linear.h"
#include "model/decoder/weight_arena.h"

namespace ziggurat {
namespace {

class PackedLinear final : public Linear {
 public:
  /// in_features: of x; those of `weights` are the next even number.
  PackedLinear(PackedProduct* product, PackedWeights weights, int in_features, at::Tensor bias)
      : product_(product), weights_(weights), in_features_(in_features), bias_(std::move(bias)) {
    if (bias_.defined()) weights_.bias = bias_.data_ptr<float>();
  }

  absl::Status Run(const void* x, int rows, ElementType out_element, void* y) override {
    return Execute(x, rows, out_element, /*accumulates=*/false, y);
  }
  absl::Status Accumulate(const void* x, int rows, float* y) override {
    return Execute(x, rows, ElementType::kF32, /*accumulates=*/true, y);
  }

 private:
  absl::Status Execute(const void* x, int rows, ElementType out, bool accumulates, void* y) {
    try {
      if (in_features_ % 2 != 0) x = Widen(static_cast<const uint16_t*>(x), rows);
      product_->Run(weights_, x, rows, out, accumulates, y);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory in a matrix product");
    }
    return absl::OkStatus();
  }

  /// The same rows with a zero behind each.
  const uint16_t* Widen(const uint16_t* x, int rows) {
    even_.assign(static_cast<size_t>(rows) * weights_.in_features, 0);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      std::copy_n(x + row * in_features_, in_features_, even_.data() + row * weights_.in_features);
    }
    return even_.data();
  }

  PackedProduct* product_;
  PackedWeights weights_;
  int in_features_;
  at::Tensor bias_;
  std::vector<uint16_t> even_;
};

class PackedLinearFactory final : public LinearFactory {
 public:
  explicit PackedLinearFactory(std::unique_ptr<PackedProduct> product)
      : product_(std::move(product)) {}

  std::string_view name() const override { return "packed"; }

  absl::StatusOr<std::unique_ptr<Linear>> Make(const at::Tensor& weight,
                                               const at::Tensor& bias) override {
    const int in_features = static_cast<int>(weight.size(1));
    at::Tensor plain = weight;
    if (in_features % 2 != 0) plain = at::constant_pad_nd(weight, {0, 1});
    plain = plain.contiguous();
    PackedWeights packed{.in_features = static_cast<int>(plain.size(1)),
                         .out_features = static_cast<int>(plain.size(0))};
    std::byte* const bytes = arena_.Allocate(packed.bytes());
    if (bytes == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for weights of ", packed.out_features, "x", in_features));
    }
    PackWeights(static_cast<const uint16_t*>(plain.data_ptr()), packed.in_features,
                packed.out_features, bytes);
    packed.data = bytes;
    at::Tensor bias_f32;
    if (bias.defined()) bias_f32 = bias.to(at::kFloat).contiguous();
    return std::make_unique<PackedLinear>(product_.get(), packed, in_features, bias_f32);
  }

 private:
  WeightArena arena_;
  std::unique_ptr<PackedProduct> product_;
};

}  // namespace

bool HasPackedLinears(ElementType element) {
  const absl::StatusOr<CpuLevel> level = DetectCpuLevel();
  return element == ElementType::kBf16 && level.ok() &&
         MakePackedProduct(*level)->max_rows() == INT_MAX;
}

std::unique_ptr<LinearFactory> MakePackedLinearFactory(ElementType element) {
  if (!HasPackedLinears(element)) return nullptr;
  return std::make_unique<PackedLinearFactory>(MakePackedProduct(*DetectCpuLevel()));
}

}  // namespace ziggurat

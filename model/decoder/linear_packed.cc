// Our own products over weights in bf16.
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

/// The rows of x with a zero behind each.
void WidenRows(const uint16_t* x, int rows, int columns, std::vector<uint16_t>* wide) {
  const size_t width = size_t{1} * columns + 1;
  wide->assign(rows * width, 0);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    std::copy_n(x + row * columns, columns, wide->data() + row * width);
  }
}

class PackedLinear final : public Linear {
 public:
  /// in_features: of x; those of `weights` are the next even number.
  PackedLinear(PackedProduct* product, PackedWeights weights, int in_features,
               std::vector<float> bias)
      : product_(product), weights_(weights), in_features_(in_features), bias_(std::move(bias)) {
    if (!bias_.empty()) weights_.bias = bias_.data();
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
      if (in_features_ % 2 != 0) {
        WidenRows(static_cast<const uint16_t*>(x), rows, in_features_, &even_);
        x = even_.data();
      }
      product_->Run(weights_, x, rows, out, accumulates, y);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory in a matrix product");
    }
    return absl::OkStatus();
  }

  PackedProduct* product_;
  PackedWeights weights_;
  int in_features_;
  std::vector<float> bias_;
  std::vector<uint16_t> even_;
};

class PackedLinearFactory final : public LinearFactory {
 public:
  explicit PackedLinearFactory(std::unique_ptr<PackedProduct> product)
      : product_(std::move(product)) {}

  absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                               const std::vector<float>& bias) override {
    if (weight.element() != ElementType::kBf16) {
      return absl::InvalidArgumentError("our own products are of bf16");
    }
    const int in_features = weight.columns();
    PackedWeights packed{.in_features = in_features + in_features % 2,
                         .out_features = weight.rows()};
    std::byte* const bytes = arena_.Allocate(packed.bytes());
    if (bytes == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for weights of ", packed.out_features, "x", in_features));
    }
    const auto* plain = reinterpret_cast<const uint16_t*>(weight.data());
    std::vector<uint16_t> even;
    if (in_features % 2 != 0) {
      WidenRows(plain, weight.rows(), in_features, &even);
      plain = even.data();
    }
    PackWeights(plain, packed.in_features, packed.out_features, bytes);
    packed.data = bytes;
    return std::make_unique<PackedLinear>(product_.get(), packed, in_features, bias);
  }

 private:
  WeightArena arena_;
  std::unique_ptr<PackedProduct> product_;
};

}  // namespace

std::unique_ptr<LinearFactory> MakePackedLinearFactory() {
  return std::make_unique<PackedLinearFactory>(MakePackedProduct(*DetectCpuLevel()));
}

bool ArePackedLinearsBest() { return MakePackedProduct(*DetectCpuLevel())->max_rows() == INT_MAX; }

}  // namespace ziggurat

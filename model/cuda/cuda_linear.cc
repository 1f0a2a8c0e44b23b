#include "model/cuda/cuda_linear.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/weights_layout.h"

namespace ziggurat::cuda {
namespace {

constexpr size_t kAlignment = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class CudaLinear final : public Linear {
 public:
  CudaLinear(Stream* stream, ProductLibrary* products, const Product& weights)
      : stream_(stream), products_(products), weights_(weights) {}

  absl::Status Run(const void* x, int rows, ElementType out_element, void* y) override {
    return Run(With(x, rows, out_element, y, false));
  }
  absl::Status Accumulate(const void* x, int rows, float* y) override {
    return Run(With(x, rows, ElementType::kF32, y, true));
  }

  bool CanFuse(int rows) const override {
    return SuitsFusion({With(nullptr, rows, weights_.element, nullptr, false)});
  }
  absl::Status RunFused(const FusedInput& input, int rows, void* y) override {
    const FusedProduct fused = {With(input.x, rows, weights_.element, y, false), input.norm,
                                input.epsilon, input.gates};
    if (!SuitsFusion(fused)) return absl::InternalError("a product that cannot be fused");
    LaunchFusedProduct(fused, stream_->get());
    return absl::OkStatus();
  }

 private:
  Product With(const void* x, int rows, ElementType out_element, void* y, bool accumulates) const {
    Product product = weights_;
    product.x = x;
    product.rows = rows;
    product.out_element = out_element;
    product.y = y;
    product.accumulates = accumulates;
    return product;
  }

  absl::Status Run(const Product& product) {
    if (!SuitsOneRow(product)) return products_->Run(product);
    LaunchOneRowProduct(product, stream_->get());
    return absl::OkStatus();
  }

  Stream* stream_;
  ProductLibrary* products_;
  Product weights_;
};

class CudaLinearFactory final : public LinearFactory {
 public:
  CudaLinearFactory(Stream* stream, DeviceMemory memory, std::unique_ptr<ProductLibrary> products)
      : stream_(stream), memory_(std::move(memory)), products_(std::move(products)) {}

  absl::StatusOr<const void*> Keep(const WeightMatrix& weights) override {
    return Send(weights.data(), weights.bytes());
  }

  absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                               const std::vector<float>& bias) override {
    Product weights;
    weights.element = weight.element();
    weights.out_features = weight.rows();
    weights.in_features = weight.columns();
    absl::StatusOr<const void*> kept = Keep(weight);
    if (!kept.ok()) return kept.status();
    weights.weight = *kept;
    if (!bias.empty()) {
      kept = Send(bias.data(), bias.size() * sizeof(float));
      if (!kept.ok()) return kept.status();
      weights.bias = static_cast<const float*>(*kept);
    }
    return std::make_unique<CudaLinear>(stream_, products_.get(), weights);
  }

 private:
  /// What came first, the embedding, is not copied again for a tied head.
  absl::StatusOr<const void*> Send(const void* host, size_t bytes) {
    if (host == first_host_) return memory_.data();
    if (bytes > memory_.bytes() - used_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the weights need more than the ", memory_.bytes(), " bytes that were counted"));
    }
    if (used_ == 0) first_host_ = host;
    std::byte* to = memory_.data() + used_;
    used_ += Aligned(bytes);
    stream_->Copy(to, host, bytes);
    stream_->Synchronize();
    return to;
  }

  Stream* stream_;
  DeviceMemory memory_;
  std::unique_ptr<ProductLibrary> products_;
  size_t used_ = 0;
  const void* first_host_ = nullptr;  ///< alive as long as weights are loaded
};

}  // namespace

size_t WeightBytes(const ModelConfig& config, ElementType element) {
  size_t bytes = 0;
  for (const WeightSpec& spec : ExpectedWeights(config)) {
    bytes += Aligned(spec.StoredBytes(element));
  }
  return bytes;
}

std::unique_ptr<LinearFactory> MakeCudaLinearFactory(Stream* stream, DeviceMemory memory,
                                                     std::unique_ptr<ProductLibrary> products) {
  return std::make_unique<CudaLinearFactory>(stream, std::move(memory), std::move(products));
}

}  // namespace ziggurat::cuda

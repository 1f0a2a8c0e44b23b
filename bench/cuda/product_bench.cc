// How near products with the weights of a decode step come to the memory bandwidth of this GPU.
//
//   cuda_product_bench           every case
//
// Shapes are those of LLaMA-3-8B in bf16. Of each there are as many weights as a few layers have,
// so that they come from memory; bytes are those of the weights.

#include <cstdio>
#include <functional>
#include <memory>

#include "bench/cuda/device_timing.h"
#include "model/cuda/product_library.h"

namespace ziggurat::cuda {
namespace {

struct Case {
  const char* name;
  int in_features, out_features;
  ElementType out_element;
  bool accumulates;
};

constexpr int kMostRows = 32, kLayers = 8;

/// Weights of a few layers, and what they are multiplied with.
class Operands {
 public:
  explicit Operands(const Case& c)
      : case_(c),
        weight_bytes_(size_t{2} * c.in_features * c.out_features),
        weights_(kLayers * weight_bytes_, 0x3c),
        x_(sizeof(float) * kMostRows * c.in_features, 0x3c),
        norm_(sizeof(float) * c.in_features, 0x3c),
        y_(sizeof(float) * kMostRows * c.out_features) {}

  Product Of(int layer, int rows) const {
    Product product;
    product.element = ElementType::kBf16;
    product.x = x_.get<void>();
    product.weight = weights_.get<unsigned char>() + layer * weight_bytes_;
    product.rows = rows;
    product.in_features = case_.in_features;
    product.out_features = case_.out_features;
    product.out_element = case_.out_element;
    product.y = y_.get<void>();
    product.accumulates = case_.accumulates;
    return product;
  }
  const float* norm() const { return norm_.get<float>(); }
  size_t bytes() const { return kLayers * weight_bytes_; }

 private:
  const Case& case_;
  size_t weight_bytes_;
  DeviceBytes weights_, x_, norm_, y_;
};

class Bench {
 public:
  Bench(Stream* stream, ProductLibrary* library, double copy_bytes_per_second)
      : stream_(stream), library_(library), copy_(copy_bytes_per_second) {}

  void Run(const Case& c) {
    const Operands operands(c);
    for (const int rows : {1, 2, 4, 8, 16, kMostRows}) {
      Time(operands, c, rows, "cuBLASLt", [&](const Product& product) {
        const absl::Status status = library_->Run(product);
        if (!status.ok()) Fail(status.message());
      });
      if (rows > 1) continue;
      Time(operands, c, rows, "one row",
           [&](const Product& product) { LaunchOneRowProduct(product, stream_->get()); });
      if (c.accumulates) continue;
      Time(operands, c, rows, "fused with RMSNorm", [&](const Product& product) {
        LaunchFusedProduct({product, operands.norm(), 1e-5f, /*gates=*/false}, stream_->get());
      });
    }
  }

 private:
  /// The products of all layers as one graph, as the daemon launches them.
  void Time(const Operands& operands, const Case& c, int rows, const char* way,
            const std::function<void(const Product&)>& multiply) {
    const auto work = [&] {
      for (int layer = 0; layer < kLayers; ++layer) multiply(operands.Of(layer, rows));
    };
    work();  // libraries load what they need, which a recording would not bear
    stream_->Synchronize();
    const absl::StatusOr<std::unique_ptr<Graph>> recorded = Graph::Record(*stream_, work);
    if (!recorded.ok()) Fail(recorded.status().message());
    const double seconds = SecondsOf(stream_->get(), [&] { (*recorded)->Launch(*stream_); });
    const double rate = static_cast<double>(operands.bytes()) / seconds;
    std::printf("%-9s %6d x %5d  %2d rows  %-18s %8.1f us  %7.1f GB/s  %5.1f %% of a copy\n",
                c.name, c.out_features, c.in_features, rows, way, seconds / kLayers * 1e6,
                rate / 1e9, 100 * rate / copy_);
  }

  Stream* stream_;
  ProductLibrary* library_;
  double copy_;
};

int Main() {
  const cudaDeviceProp properties = FindGpu();
  const double copy = CopyBytesPerSecond();
  const std::unique_ptr<Stream> stream = Stream::Create();
  const auto library = ProductLibrary::Create(stream.get());
  if (!library.ok()) Fail(library.status().message());
  std::printf("%s; a copy moves %.1f GB/s\n", properties.name, copy / 1e9);
  constexpr ElementType kBf16 = ElementType::kBf16, kF32 = ElementType::kF32;
  Bench bench(stream.get(), library->get(), copy);
  for (const Case& c :
       {Case{"qkv", 4096, 6144, kBf16, false}, Case{"output", 4096, 4096, kF32, true},
        Case{"gate, up", 4096, 28672, kBf16, false}, Case{"down", 14336, 4096, kF32, true},
        Case{"head", 4096, 128256, kF32, false}}) {
    bench.Run(c);
  }
  return 0;
}

}  // namespace
}  // namespace ziggurat::cuda

int main() { return ziggurat::cuda::Main(); }

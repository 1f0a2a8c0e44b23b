// model/cuda/product_library.h for the emulator.
#include "model/cuda/product_library.h"

namespace ziggurat::cuda {
namespace {

class PlainProducts final : public ProductLibrary {
 public:
  explicit PlainProducts(Stream* stream) : stream_(stream) {}
  absl::Status Run(const Product& product) override {
    LaunchPlainProduct(product, stream_->get());
    return absl::OkStatus();
  }

 private:
  Stream* stream_;
};

}  // namespace

size_t ProductLibrary::WorkspaceBytes() { return 0; }

absl::StatusOr<std::unique_ptr<ProductLibrary>> ProductLibrary::Create(Stream* stream) {
  return std::make_unique<PlainProducts>(stream);
}

}  // namespace ziggurat::cuda

// cuda_decoder.h where the build has no CUDA.
#include "model/cuda/cuda_decoder.h"

namespace ziggurat {
namespace {

absl::Status NoCuda() {
  return absl::UnimplementedError("this build has no CUDA; the preset 'cuda' has (docs/gpu.md)");
}

}  // namespace

bool HasCuda() { return false; }

absl::StatusOr<std::string> FindCudaDevice(int /*device*/) { return NoCuda(); }

absl::StatusOr<double> MeasureCudaCopyBandwidth(int /*device*/, size_t /*bytes*/) {
  return NoCuda();
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadCudaDecoder(const std::filesystem::path& /*dir*/,
                                                             const CudaDecoderOptions&) {
  return NoCuda();
}

}  // namespace ziggurat

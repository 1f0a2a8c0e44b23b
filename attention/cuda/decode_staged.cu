// Partial attention on tensor cores over codes that come by way of shared memory, for each encoding
// and head size that has stages.
#include "attention/cuda/staged_attend.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kWarpsPerBlock = 4;

// Twelve warps on a multiprocessor.
template <Encoding kEncoding, int kDim>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp, 3)
    StagedPartials(DecodeArguments a, DecodePlan plan) {
  LetNextBegin();
  AwaitPrevious();
  const int worker = static_cast<int>(blockIdx.x) * kWarpsPerBlock + WarpOfThread();
  using Staged = StagedChunks<kEncoding, kDim>;
  ZIGGURAT_SHARED_MEMORY(shared);
  StagedAttend<kEncoding, kDim> attend{{a, plan}, Staged(shared + WarpOfThread() * Staged::kBytes)};
  ForEachRun(a, plan, worker, [&](const DecodeRun& run) { attend(run); });
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

namespace {

template <Encoding kEncoding>
void LaunchEncoding(const DecodeArguments& arguments, const DecodePlan& plan, cudaStream_t stream) {
  const dim3 grid{static_cast<unsigned>(plan.workers + kWarpsPerBlock - 1) / kWarpsPerBlock};
  const dim3 block{kWarpsPerBlock * kWarp};
  const auto launch = [&]<int kDim>() {
    if constexpr (HasStages(kEncoding, kDim)) {
      constexpr size_t kShared = kWarpsPerBlock * StagedChunks<kEncoding, kDim>::kBytes;
      LaunchEarly(StagedPartials<kEncoding, kDim>, grid, block, kShared, stream, arguments, plan);
    }
  };
  arguments.shape.head_dim == 64 ? launch.template operator()<64>()
                                 : launch.template operator()<128>();
}

}  // namespace

void LaunchStagedPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream) {
  switch (static_cast<Encoding>(plan.takes.kernel - StagedKernel(Encoding{}))) {
    case Encoding::kF32:
    case Encoding::kBf16:
      break;
    case Encoding::kInt8:
      return LaunchEncoding<Encoding::kInt8>(arguments, plan, stream);
    case Encoding::kFp8:
      return LaunchEncoding<Encoding::kFp8>(arguments, plan, stream);
    case Encoding::kInt4:
      return LaunchEncoding<Encoding::kInt4>(arguments, plan, stream);
    case Encoding::kInt2:
      return LaunchEncoding<Encoding::kInt2>(arguments, plan, stream);
  }
}

}  // namespace ziggurat::cuda

// Partial attention on tensor cores over codes that come by way of shared memory, for each encoding
// and head size that has stages.
#include "attention/cuda/staged_attend.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

// Twelve warps on a multiprocessor.
template <Encoding kEncoding, int kDim>
__global__ void __launch_bounds__(kWorkersPerBlock* kWarp, 3)
    StagedPartials(DecodeArguments a, DecodePlan plan) {
  LetNextBegin();
  AwaitPrevious();
  using Staged = StagedChunks<kEncoding, kDim>;
  ZIGGURAT_SHARED_MEMORY(shared);
  StagedAttend<kEncoding, kDim> attend{{a, plan}, Staged(shared + WarpOfThread() * Staged::kBytes)};
  ForEachRun(a, plan, WorkerOfThread(), [&](const DecodeRun& run) { attend(run); });
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchStagedPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream) {
  const auto encoding = static_cast<Encoding>(plan.takes.kernel - StagedKernel(Encoding{}));
  WithEncoding(encoding, [&]<Encoding kEncoding>() {
    const auto launch = [&]<int kDim>() {
      if constexpr (HasStages(kEncoding, kDim)) {
        LaunchWorkers(StagedPartials<kEncoding, kDim>, StagedChunks<kEncoding, kDim>::kBytes,
                      arguments, plan, stream);
      }
    };
    arguments.shape.head_dim == 64 ? launch.template operator()<64>()
                                   : launch.template operator()<128>();
  });
}

}  // namespace ziggurat::cuda

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

namespace {

/// use(kernel, shared bytes of a worker): that of an encoding and a head size, where it has stages.
template <class Use>
void WithStagedKernel(Encoding encoding, int head_dim, Use use) {
  WithEncoding(encoding, [&]<Encoding kEncoding>() {
    const auto of_dim = [&]<int kDim>() {
      if constexpr (HasStages(kEncoding, kDim)) {
        use(StagedPartials<kEncoding, kDim>, StagedChunks<kEncoding, kDim>::kBytes);
      }
    };
    if (head_dim == 64) of_dim.template operator()<64>();
    if (head_dim == 128) of_dim.template operator()<128>();
  });
}

}  // namespace

int StagedWorkersAtOnce(Encoding encoding, const AttentionShape& shape) {
  int workers = 0;
  WithStagedKernel(encoding, shape.head_dim, [&](auto of, size_t shared_bytes) {
    workers = WorkersThatFit(of, shared_bytes);
  });
  return workers;
}

void LaunchStagedPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream) {
  WithStagedKernel(plan.takes.kernel.encoding(), arguments.shape.head_dim,
                   [&](auto of, size_t shared_bytes) {
                     LaunchWorkers(of, shared_bytes, arguments, plan, stream);
                   });
}

}  // namespace ziggurat::cuda

// Partial attention on tensor cores, for each encoding but f32.
#include "attention/cuda/tensor_attend.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

// Twelve warps on a processor (eight for the largest heads) hide the latency of memory with what
// each has under way.
template <Encoding kEncoding, int kMaxDim>
__global__ void __launch_bounds__(kWorkersPerBlock* kWarp, kMaxDim <= 128 ? 3 : 2)
    TensorPartials(DecodeArguments a, DecodePlan plan) {
  LetNextBegin();
  AwaitPrevious();
  TensorAttend<kEncoding, kMaxDim> attend{{a, plan}};
  ForEachRun(a, plan, WorkerOfThread(), [&](const DecodeRun& run) { attend(run); });
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchTensorPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream) {
  const auto encoding = static_cast<Encoding>(plan.takes.kernel - TensorKernel(Encoding{}));
  WithEncoding(encoding, [&]<Encoding kEncoding>() {
    if constexpr (kEncoding != Encoding::kF32) {
      const auto launch = [&]<int kMaxDim>() {
        LaunchWorkers(TensorPartials<kEncoding, kMaxDim>, 0, arguments, plan, stream);
      };
      switch (TensorHeadDim(arguments.shape.head_dim)) {
        case 32:
          return launch.template operator()<32>();
        case 64:
          return launch.template operator()<64>();
        case 128:
          return launch.template operator()<128>();
        default:
          return launch.template operator()<256>();
      }
    }
  });
}

}  // namespace ziggurat::cuda

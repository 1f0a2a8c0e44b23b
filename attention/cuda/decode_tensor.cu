// Partial attention on tensor cores, for each encoding but f32.
#include "attention/cuda/tensor_attend.cuh"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kWarpsPerBlock = 4;

// Twelve warps on a processor (eight for the largest heads) hide the latency of memory with what
// each has under way.
template <Encoding kEncoding, int kMaxDim>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp, kMaxDim <= 128 ? 3 : 2)
    TensorPartials(DecodeArguments a, DecodePlan plan) {
  LetNextBegin();
  AwaitPrevious();
  const int worker = static_cast<int>(blockIdx.x) * kWarpsPerBlock + WarpOfThread();
  TensorAttend<kEncoding, kMaxDim> attend{{a, plan}};
  ForEachRun(a, plan, worker, [&](const DecodeRun& run) { attend(run); });
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

namespace {

template <Encoding kEncoding>
void LaunchEncoding(const DecodeArguments& arguments, const DecodePlan& plan, cudaStream_t stream) {
  const dim3 grid{static_cast<unsigned>(plan.workers + kWarpsPerBlock - 1) / kWarpsPerBlock};
  const dim3 block{kWarpsPerBlock * kWarp};
  const auto launch = [&]<int kMaxDim>() {
    LaunchEarly(TensorPartials<kEncoding, kMaxDim>, grid, block, 0, stream, arguments, plan);
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

}  // namespace

void LaunchTensorPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream) {
  switch (static_cast<Encoding>(plan.takes.kernel - TensorKernel(Encoding{}))) {
    case Encoding::kF32:
      break;
    case Encoding::kBf16:
      return LaunchEncoding<Encoding::kBf16>(arguments, plan, stream);
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

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

namespace {

/// use(kernel): that of an encoding, which is not f32, and a head size.
template <class Use>
void WithTensorKernel(Encoding encoding, int head_dim, Use use) {
  WithEncoding(encoding, [&]<Encoding kEncoding>() {
    if constexpr (kEncoding != Encoding::kF32) {
      switch (TensorHeadDim(head_dim)) {
        case 32:
          return use(TensorPartials<kEncoding, 32>);
        case 64:
          return use(TensorPartials<kEncoding, 64>);
        case 128:
          return use(TensorPartials<kEncoding, 128>);
        default:
          return use(TensorPartials<kEncoding, 256>);
      }
    }
  });
}

}  // namespace

int TensorWorkersAtOnce(Encoding encoding, const AttentionShape& shape) {
  int workers = 0;
  WithTensorKernel(encoding, shape.head_dim, [&](auto of) { workers = WorkersThatFit(of, 0); });
  return workers;
}

void LaunchTensorPartials(const DecodeArguments& arguments, const DecodePlan& plan,
                          cudaStream_t stream) {
  WithTensorKernel(plan.takes.kernel.encoding(), arguments.shape.head_dim,
                   [&](auto of) { LaunchWorkers(of, 0, arguments, plan, stream); });
}

}  // namespace ziggurat::cuda

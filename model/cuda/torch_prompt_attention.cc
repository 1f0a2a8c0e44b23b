// Attention of prompts by libtorch's flash attention. Written for libtorch 2.11 with CUDA; see
// docs/gpu.md for where it has been compiled.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "model/cuda/prompt_attention.h"

namespace ziggurat::cuda {
namespace {

/// What the library's kernels take: 16-bit types, heads of whole 16 bytes up to 256 channels.
bool Serves(const AttentionShape& shape, ElementType element) {
  return element == ElementType::kBf16 && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
}

class TorchPromptAttention final : public PromptAttention {
 public:
  explicit TorchPromptAttention(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}

  bool Attend(const AttentionShape& shape, const PackedSequences& sequences, ElementType element,
              const void* q, const void* k, const void* v, void* out, float* lse,
              cudaStream_t stream) override {
    if (!Serves(shape, element)) return false;
    const at::NoGradGuard no_grad;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, device_));
    // One prompt at a time: the log-sum-exp of a packed batch has had several layouts. The longest
    // comes first: what the library allocates is in no plan of the device's memory, and if there is
    // none, nothing has been written yet; the others find what the first one had.
    std::vector<int> order(sequences.num_sequences());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return sequences.length(a) > sequences.length(b); });
    for (const int i : order) {
      const int64_t first = sequences.offsets[i], n = sequences.length(i);
      if (n == 0) continue;
      const auto rows = [&](const void* data, int64_t heads) {
        auto* at_first =
            static_cast<uint16_t*>(const_cast<void*>(data)) + first * heads * shape.head_dim;
        return at::from_blob(at_first, {1, n, heads, shape.head_dim},
                             at::TensorOptions(at::kBFloat16).device(at::kCUDA, device_));
      };
      std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> attended;
      try {
        attended = at::_flash_attention_forward(
            rows(q, shape.num_q_heads), rows(k, shape.num_kv_heads), rows(v, shape.num_kv_heads),
            std::nullopt, std::nullopt, n, n, /*dropout_p=*/0.0, /*is_causal=*/true,
            /*return_debug_mask=*/false, static_cast<double>(shape.scale));
      } catch (const c10::OutOfMemoryError&) {
        if (i == order.front()) return false;
        throw;
      }
      rows(out, shape.num_q_heads).copy_(std::get<0>(attended));
      // [1, heads, n] there, [n, heads] here.
      at::from_blob(lse + first * shape.num_q_heads, {n, shape.num_q_heads},
                    at::TensorOptions(at::kFloat).device(at::kCUDA, device_))
          .copy_(std::get<1>(attended).select(0, 0).slice(1, 0, n).transpose(0, 1));
    }
    return true;
  }

 private:
  c10::DeviceIndex device_;
};

}  // namespace

std::unique_ptr<PromptAttention> MakePromptAttention(int device) {
  return std::make_unique<TorchPromptAttention>(device);
}

}  // namespace ziggurat::cuda

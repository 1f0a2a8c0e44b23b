// Attention of prompts by libtorch's flash attention. Written for libtorch 2.11 with CUDA; see
// docs/gpu.md for where it has been compiled.
#include "model/cuda/torch_prompt_library.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <optional>
#include <tuple>

#include "spdlog/spdlog.h"

namespace ziggurat::cuda {
namespace {

class TorchPromptLibrary final : public PromptLibrary {
 public:
  explicit TorchPromptLibrary(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}

  /// What the library's kernels take: 16-bit types, heads of whole 16 bytes up to 256 channels.
  bool Serves(const AttentionShape& shape, ElementType element) const override {
    return !has_failed_ && element == ElementType::kBf16 && shape.head_dim % 8 == 0 &&
           shape.head_dim <= 256;
  }

  /// Output and log-sum-exp, each rounded up to what the library's allocator takes at a time.
  size_t WorkspaceBytes(const AttentionShape& shape, int tokens) const override {
    constexpr size_t kPiece = size_t{20} << 20;
    return 2 * kPiece + WarmUpBytes(shape, ElementType::kBf16, tokens);
  }

  bool Attend(const AttentionShape& shape, int num_tokens, const PromptTensors& tensors,
              cudaStream_t stream) override {
    if (has_failed_) return false;  // since Serves was asked
    try {
      FlashAttention(shape, num_tokens, tensors, stream);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      return false;  // WarmUp found no room for prompts as long; a shorter one may have it
    } catch (const std::exception& error) {
      has_failed_ = true;  // it would fail for the next prompt, too
      spdlog::warn("prompts go without libtorch's attention from now on: {}", error.what());
      return false;
    }
  }

 private:
  void FlashAttention(const AttentionShape& shape, int64_t n, const PromptTensors& t,
                      cudaStream_t stream) const {
    const at::NoGradGuard no_grad;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, device_));
    const auto rows = [&](const void* data, int64_t heads) {
      return at::from_blob(const_cast<void*>(data), {1, n, heads, shape.head_dim},
                           at::TensorOptions(at::kBFloat16).device(at::kCUDA, device_));
    };
    // One prompt at a time: the log-sum-exp of a packed batch has had several layouts.
    const auto attended = at::_flash_attention_forward(
        rows(t.q, shape.num_q_heads), rows(t.k, shape.num_kv_heads), rows(t.v, shape.num_kv_heads),
        std::nullopt, std::nullopt, n, n, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, static_cast<double>(shape.scale));
    // [1, heads, n] there, [n, heads] here.
    at::from_blob(t.lse, {n, shape.num_q_heads},
                  at::TensorOptions(at::kFloat).device(at::kCUDA, device_))
        .copy_(std::get<1>(attended).select(0, 0).slice(1, 0, n).transpose(0, 1));
    // Comes last: whatever fails before it leaves the queries, which may lie there, as they were.
    rows(t.out, shape.num_q_heads).copy_(std::get<0>(attended));
  }

  c10::DeviceIndex device_;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<PromptLibrary> MakeTorchPromptLibrary(int device) {
  return std::make_unique<TorchPromptLibrary>(device);
}

}  // namespace ziggurat::cuda

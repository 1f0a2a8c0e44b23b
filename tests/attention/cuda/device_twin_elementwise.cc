#include <algorithm>

#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {

void DeviceTwin::RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                         ElementType element, void* out) {
  const size_t count = size_t{1} * rows * width;
  OnDevice device_x(x, count * sizeof(float)), device_weight(weight, width * sizeof(float));
  OnDevice device_out(count * ElementBytes(element));
  backend_->RmsNorm(device_x.get<float>(), device_weight.get<float>(), epsilon, rows, width,
                    element, device_out.get());
  device_out.CopyTo(out);
}

void DeviceTwin::SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                                const float* cos, const float* sin, int rows,
                                ElementType out_element, void* q, void* k, void* v) {
  const size_t row = size_t{1} * rows * shape.head_dim,
               heads = shape.num_q_heads + 2 * shape.num_kv_heads;
  OnDevice device_qkv(qkv, row * heads * ElementBytes(element));
  OnDevice device_cos(cos, row / 2 * sizeof(float)), device_sin(sin, row / 2 * sizeof(float));
  const size_t bytes = row * ElementBytes(out_element);
  OnDevice device_q(bytes * shape.num_q_heads), device_k(bytes * shape.num_kv_heads);
  OnDevice device_v(bytes * shape.num_kv_heads);
  backend_->SplitAndRotate(shape, element, device_qkv.get(), device_cos.get<float>(),
                           device_sin.get<float>(), rows, out_element, device_q.get(),
                           device_k.get(), device_v.get());
  device_q.CopyTo(q);
  device_k.CopyTo(k);
  device_v.CopyTo(v);
}

void DeviceTwin::SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) {
  const size_t bytes = size_t{1} * rows * width * ElementBytes(element);
  OnDevice device_in(gate_up, 2 * bytes), device_out(bytes);
  backend_->SwiGlu(element, device_in.get(), rows, width, device_out.get());
  device_out.CopyTo(out);
}

void DeviceTwin::Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) {
  // A GPU's kernels convert as they store.
  MakeReferenceBackend()->Convert(from, x, count, to, out);
}

void DeviceTwin::EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids,
                             int width, float* out) {
  // Of the table the rows that are asked for, and those before them.
  const size_t rows = 1 + *std::max_element(ids.begin(), ids.end());
  OnDevice device_table(table, rows * width * ElementBytes(element));
  OnDevice device_out(ids.size() * width * sizeof(float));
  backend_->EmbedTokens(element, device_table.get(), ids, width, device_out.get<float>());
  device_out.CopyTo(out);
}

void DeviceTwin::FillAngles(absl::Span<const float> inverse_frequencies, int first, int count,
                            float* cos, float* sin) {
  const size_t bytes = inverse_frequencies.size() * count * sizeof(float);
  OnDevice device_cos(bytes), device_sin(bytes);
  backend_->FillAngles(inverse_frequencies, first, count, device_cos.get<float>(),
                       device_sin.get<float>());
  device_cos.CopyTo(cos);
  device_sin.CopyTo(sin);
}

void DeviceTwin::PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                  const PromptTensors& prompts) {
  const size_t tokens = sequences.num_tokens(),
               row = shape.head_dim * ElementBytes(prompts.element);
  const size_t q_bytes = tokens * shape.num_q_heads * row;
  const size_t kv_bytes = tokens * shape.num_kv_heads * row;
  // In place, as the decoder has it.
  OnDevice device_q(prompts.q, q_bytes), device_k(prompts.k, kv_bytes),
      device_v(prompts.v, kv_bytes);
  OnDevice device_lse(tokens * shape.num_q_heads * sizeof(float));
  backend_->PrefillAttention(shape, sequences,
                             {prompts.element, device_q.get(), device_k.get(), device_v.get(),
                              device_q.get(), device_lse.get<float>()});
  device_q.CopyTo(prompts.out);
  device_lse.CopyTo(prompts.lse);
}

void DeviceTwin::PrefillDistantAttention(const AttentionShape& shape, int n,
                                         const PromptTensors& prompt, const DistantPrefill& distant,
                                         DistantCounts* counts) {
  const size_t row = n * shape.head_dim * ElementBytes(prompt.element);
  const size_t q_bytes = row * shape.num_q_heads, kv_bytes = row * shape.num_kv_heads;
  OnDevice device_q(prompt.q, q_bytes), device_k(prompt.k, kv_bytes), device_v(prompt.v, kv_bytes);
  OnDevice low_q(distant.low_q, q_bytes), low_k(distant.low_k, kv_bytes);
  OnDevice device_lse(size_t{1} * n * shape.num_q_heads * sizeof(float));
  DistantPrefill on_device = distant;
  on_device.low_q = low_q.get();
  on_device.low_k = low_k.get();
  backend_->PrefillDistantAttention(shape, n,
                                    {prompt.element, device_q.get(), device_k.get(), device_v.get(),
                                     device_q.get(), device_lse.get<float>()},
                                    on_device, counts);
  device_q.CopyTo(prompt.out);
  device_lse.CopyTo(prompt.lse);
}

}  // namespace ziggurat::cuda

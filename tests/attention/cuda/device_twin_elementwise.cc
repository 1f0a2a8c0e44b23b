#include "attention/cuda/elementwise.h"
#include "gtest/gtest.h"
#include "tests/attention/cuda/cache_on_device.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {

void DeviceTwin::RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                         ElementType element, void* out) {
  const size_t count = size_t{1} * rows * width;
  OnDevice device_x(x, count * sizeof(float)), device_weight(weight, width * sizeof(float));
  OnDevice device_out(count * ElementBytes(element));
  LaunchRmsNorm(device_x.get<float>(), device_weight.get<float>(), epsilon, rows, width, element,
                device_out.get(), kStream);
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
  LaunchSplitAndRotate(DeviceShapeOf(shape), element, device_qkv.get(), device_cos.get<float>(),
                       device_sin.get<float>(), rows, out_element, device_q.get(), device_k.get(),
                       device_v.get(), kStream);
  device_q.CopyTo(q);
  device_k.CopyTo(k);
  device_v.CopyTo(v);
}

void DeviceTwin::SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) {
  const size_t bytes = size_t{1} * rows * width * ElementBytes(element);
  OnDevice device_in(gate_up, 2 * bytes), device_out(bytes);
  LaunchSwiGlu(element, device_in.get(), rows, width, device_out.get(), kStream);
  device_out.CopyTo(out);
}

void DeviceTwin::AddResidual(ElementType element, const void* x, size_t count, float* residual) {
  OnDevice device_x(x, count * ElementBytes(element)), device_sum(residual, count * sizeof(float));
  LaunchAddResidual(element, device_x.get(), count, device_sum.get<float>(), kStream);
  device_sum.CopyTo(residual);
}

void DeviceTwin::Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) {
  OnDevice device_x(x, count * ElementBytes(from)), device_out(count * ElementBytes(to));
  LaunchConvert(from, device_x.get(), count, to, device_out.get(), kStream);
  device_out.CopyTo(out);
}

// A prompt's own attention is a library's (docs/gpu.md): there is no kernel of ours. What tests of
// statistics need of it, the reference computes.

void DeviceTwin::PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                  ElementType element, const void* q, const void* k, const void* v,
                                  void* out, float* lse) {
  MakeReferenceBackend()->PrefillAttention(shape, sequences, element, q, k, v, out, lse);
}
void DeviceTwin::PrefillDistantAttention(const AttentionShape&, int, ElementType, const void*,
                                         const void*, const void*, const DistantPrefill&, void*,
                                         float*, DistantCounts*) {
  ADD_FAILURE() << "no kernel";
}

}  // namespace ziggurat::cuda

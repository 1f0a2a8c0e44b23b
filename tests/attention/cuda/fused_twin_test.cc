// Kernels that do two functions of a backend in one pass, against the reference doing both.

#include <optional>

#include "attention/cuda/writes.h"
#include "tests/attention/cuda/cache_on_device.h"

namespace ziggurat::cuda {
namespace {

const float* Floats(const Tensor& tensor) { return static_cast<const float*>(tensor.data()); }

TEST(CudaFused, RotatesAndWritesAStepInOnePass) {
  constexpr int kItems = 5, kSlots = 40;
  const AttentionShape shape = Shape(6, 3, 32);
  const size_t heads = shape.num_q_heads + 2 * shape.num_kv_heads;
  for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const Tensor qkv = RandomTensor(element, kItems * heads * 32, 1);
    const Tensor cos = RandomTensor(ElementType::kF32, kItems * 16, 2);
    const Tensor sin = RandomTensor(ElementType::kF32, kItems * 16, 3);
    TestCache cache(shape, std::vector<SegmentSpec>(kItems, {CacheFormat::kF32, kSlots}));
    std::vector<TokenTarget> targets;
    for (int i = 0; i < kItems; ++i) targets.push_back({0, 7 * i});
    std::vector<DecodeItem> items(kItems);
    for (int i = 0; i < kItems; ++i) {
      items[i].segments = {&cache.segments[i], 1};
      items[i].targets = {&targets[i], 1};
    }
    TableImage image;
    const DeviceItems device_items = image.AddItems(items);
    std::optional<PoolOnDevice> pool(cache.pool.view());
    const TableOnDevice table(pool->view(), image);
    OnDevice device_qkv(qkv.data(), qkv.bytes.size()), device_cos(cos.data(), cos.bytes.size());
    OnDevice device_sin(sin.data(), sin.bytes.size()), device_q(kItems * 6 * 32 * sizeof(float));
    LaunchRotateAndWriteStep(shape, table.view, device_items, element, device_qkv.get(),
                             device_cos.get<float>(), device_sin.get<float>(),
                             device_q.get<float>(), TestStream().get());
    pool.reset();  // comes back
    std::vector<float> actual_q(kItems * 6 * 32);
    device_q.CopyTo(actual_q.data());

    const auto reference = MakeReferenceBackend();
    std::vector<float> q(actual_q.size()), k(kItems * 3 * 32), v(k.size());
    reference->SplitAndRotate(shape, element, qkv.data(), Floats(cos), Floats(sin), kItems,
                              ElementType::kF32, q.data(), k.data(), v.data());
    EXPECT_LE(Deviation(actual_q, q), 1e-6);
    std::vector<float> written_k(k.size()), written_v(v.size());
    for (int i = 0; i < kItems; ++i) {
      reference->ReadTokens(shape, cache.pool.view(), cache.segments[i], 7 * i, 1,
                            written_k.data() + i * 96, written_v.data() + i * 96);
    }
    EXPECT_LE(Deviation(written_k, k), 1e-6);
    EXPECT_EQ(written_v, v);
  }
}

}  // namespace
}  // namespace ziggurat::cuda

// What a prompt hands to the device where the upload ring is small.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/attention/cuda/cache_on_device.h"

namespace ziggurat::cuda {
namespace {

TEST(CudaUploads, OfMoreIdsThanTheRingTakesGoInPieces) {
  constexpr int kWidth = 24, kVocabulary = 50;
  const auto backend = BackendOnDevice({.upload_bytes = 1024});
  for (const int count : {1, 128, 129, 1000}) {  // 128 are half of the ring
    std::vector<int32_t> ids(count);
    for (int i = 0; i < count; ++i) ids[i] = 7 * i % kVocabulary;
    const Tensor table = RandomTensor(ElementType::kBf16, kVocabulary * kWidth, 5);
    const OnDevice on_device(table.data(), table.bytes.size());
    std::vector<float> rows(size_t{1} * count * kWidth);
    const OnDevice device_rows(rows.size() * sizeof(float));
    backend->EmbedTokens(table.element, on_device.get(), ids, kWidth, device_rows.get<float>());
    device_rows.CopyTo(rows.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(rows[i], table.at(ids[i / kWidth] * kWidth + i % kWidth)) << count << " " << i;
    }
  }
}

}  // namespace
}  // namespace ziggurat::cuda

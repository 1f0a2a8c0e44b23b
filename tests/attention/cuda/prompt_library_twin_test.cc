// A library that attends to prompts, and fails for some of them.

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/attention/cuda/cache_on_device.h"

namespace ziggurat::cuda {
namespace {

const AttentionShape kShape = Shape(4, 2, 16);
constexpr int kRow = 4 * 16;  ///< numbers of a token's queries

/// Gives zeros for what it attends to; fails for the lengths `fails`.
class ZeroLibrary final : public PromptLibrary {
 public:
  ZeroLibrary(std::vector<int> fails, std::vector<int>* asked)
      : fails_(std::move(fails)), asked_(asked) {}

  bool Serves(const AttentionShape& /*shape*/, ElementType element) const override {
    return element == ElementType::kBf16;
  }
  size_t WorkspaceBytes(const AttentionShape& /*shape*/, int /*tokens*/) const override {
    return 0;
  }
  bool Attend(const AttentionShape& /*shape*/, int num_tokens, const PromptTensors& tensors,
              cudaStream_t /*stream*/) override {
    asked_->push_back(num_tokens);
    if (std::count(fails_.begin(), fails_.end(), num_tokens) != 0) return false;
    TestStream().Zero(tensors.out, size_t{2} * kRow * num_tokens);
    TestStream().Zero(tensors.lse, sizeof(float) * kShape.num_q_heads * num_tokens);
    return true;
  }

 private:
  std::vector<int> fails_;
  std::vector<int>* asked_;
};

/// Prompts of 3, 0, 7, 5 and 4 tokens.
const std::vector<int> kOffsets = {0, 3, 3, 10, 15, 19};

struct Result {
  std::vector<float> out, lse;
};

Result AttendedBy(std::unique_ptr<PromptLibrary> library, ElementType element) {
  const std::shared_ptr<Stream> stream(std::shared_ptr<Stream>(), &TestStream());  // not owned
  auto backend = *CudaBackend::Create(stream, {.upload_bytes = 4096}, std::move(library));
  const int n = kOffsets.back();
  Tensor q = RandomTensor(element, size_t{1} * kRow * n, 1);
  const Tensor k = RandomTensor(element, size_t{1} * kRow / 2 * n, 2);
  const Tensor v = RandomTensor(element, size_t{1} * kRow / 2 * n, 3);
  OnDevice device_q(q.data(), q.bytes.size()), device_k(k.data(), k.bytes.size());
  OnDevice device_v(v.data(), v.bytes.size());
  Result result{{}, std::vector<float>(size_t{1} * n * kShape.num_q_heads)};
  OnDevice lse(result.lse.size() * sizeof(float));
  backend->PrefillAttention(kShape, {kOffsets},
                            {element, device_q.get(), device_k.get(), device_v.get(),
                             device_q.get(), lse.get<float>()});  // in place
  device_q.CopyTo(q.data());
  lse.CopyTo(result.lse.data());
  result.out = q.floats();
  return result;
}

TEST(PromptLibrary, LeavesThePromptsItFailsForToOurKernels) {
  const Result ours = AttendedBy(nullptr, ElementType::kBf16);
  for (const std::vector<int>& fails : {std::vector<int>{}, {7}, {5}, {3, 4}, {3, 7, 5, 4}}) {
    std::vector<int> asked;
    const Result mixed =
        AttendedBy(std::make_unique<ZeroLibrary>(fails, &asked), ElementType::kBf16);
    EXPECT_EQ(asked, (std::vector<int>{7, 5, 4, 3}));  // the longest first
    for (size_t i = 0; i + 1 < kOffsets.size(); ++i) {
      const int length = kOffsets[i + 1] - kOffsets[i];
      const bool failed = std::count(fails.begin(), fails.end(), length) != 0;
      for (int x = kOffsets[i] * kRow; x < kOffsets[i + 1] * kRow; ++x) {
        ASSERT_EQ(mixed.out[x], failed ? ours.out[x] : 0) << "a prompt of " << length << " tokens";
      }
      for (int x = kOffsets[i] * 4; x < kOffsets[i + 1] * 4; ++x) {
        ASSERT_EQ(mixed.lse[x], failed ? ours.lse[x] : 0) << "a prompt of " << length << " tokens";
      }
    }
  }
}

TEST(PromptLibrary, IsNotAskedWhereItDoesNotServe) {
  std::vector<int> asked;
  const Result served =
      AttendedBy(std::make_unique<ZeroLibrary>(std::vector<int>(), &asked), ElementType::kF32);
  EXPECT_TRUE(asked.empty());
  EXPECT_EQ(served.out, AttendedBy(nullptr, ElementType::kF32).out);
}

struct WarmedUp {
  bool succeeded;
  std::vector<int> asked;
  std::vector<std::byte> memory;  ///< ones before, which are zeros where the library was
};

WarmedUp WarmUpForTwenty(std::vector<int> fails) {
  WarmedUp result;
  ZeroLibrary library(std::move(fails), &result.asked);
  result.memory.assign(WarmUpBytes(kShape, ElementType::kBf16, 20), std::byte{1});
  OnDevice device(result.memory.data(), result.memory.size());
  result.succeeded =
      WarmUp(library, kShape, ElementType::kBf16, 20, device.get(), TestStream().get());
  device.CopyTo(result.memory.data());
  return result;
}

TEST(PromptLibrary, WarmsUpFromTheLongestPromptOn) {
  const WarmedUp result = WarmUpForTwenty({});
  EXPECT_TRUE(result.succeeded);
  EXPECT_EQ(result.asked, (std::vector<int>{20, 10, 5, 2, 1}));
  EXPECT_EQ(std::count(result.memory.begin(), result.memory.end(), std::byte{1}), 0);
}

TEST(PromptLibrary, SaysThatItFailedToWarmUp) {
  const WarmedUp result = WarmUpForTwenty({10});
  EXPECT_FALSE(result.succeeded);
  EXPECT_EQ(result.asked, (std::vector<int>{20, 10}));
}

}  // namespace
}  // namespace ziggurat::cuda

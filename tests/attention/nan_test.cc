// A number that is none in a cache or a prompt shows in the results, as it does in the reference:
// what is left out instead would make text that looks right.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/attention/decode_batch.h"
#include "tests/attention/distant_layers.h"

namespace ziggurat {
namespace {

/// How many of those that are not finite in `expected` are so in `actual`.
int CountShown(const std::vector<float>& actual, const std::vector<float>& expected) {
  int shown = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    shown += !std::isfinite(expected[i]) && !std::isfinite(actual[i]);
  }
  return shown;
}

int CountOdd(const std::vector<float>& x) { return CountShown(x, x); }

// The key of token 150 lies in the second chunk of 128: sums and a maximum of others are there.
TEST(NanTest, AnInfiniteKeyShowsWhateverItIsKeptAs) {
  const std::vector<CacheFormat> formats = {{Encoding::kF32},      {Encoding::kBf16},
                                            {Encoding::kInt8},     {Encoding::kFp8},
                                            {Encoding::kInt4, 32}, {Encoding::kInt2, 32}};
  constexpr int kDim = 64, kTokens = 320, kHeads = 2;
  for (const int group : {1, 4, 8}) {
    for (const CacheFormat& format : formats) {
      for (const int token : {5, 150}) {
        AttentionShape shape = Shape(kHeads * group, kHeads, kDim);
        shape.element = format.encoding == Encoding::kF32 ? ElementType::kF32 : ElementType::kBf16;
        Batch batch({format}, shape, {kTokens});
        const size_t numbers = size_t{kTokens} * kHeads * kDim;
        Tensor k = RandomTensor(shape.element, numbers, 1);
        const Tensor v = RandomTensor(shape.element, numbers, 2);
        k.set((token * kHeads + 1) * kDim + 17, INFINITY);
        const PoolView pool = batch.pool.view();
        MakeReferenceBackend()->WriteTokens(shape, {shape.element, k.data(), v.data()},
                                            TokenChoice::From(0, kTokens), pool,
                                            batch.segments[0][0], 0);
        const std::vector<float> q = Queries(Encoding::kBf16, shape, 1, 7);
        const Decoded expected = RunDecode(*MakeReferenceBackend(), shape, batch.items, q, pool);
        // Of plain keys the score is infinite, and where it is below zero the token is left out.
        if (!IsPlain(format.encoding)) {
          EXPECT_EQ(CountOdd(expected.out), group * kDim);
        }
        for (const auto& backend : AllBackends()) {
          const Decoded actual = RunDecode(*backend, shape, batch.items, q, pool);
          EXPECT_EQ(CountShown(actual.out, expected.out), CountOdd(expected.out))
              << backend->name() << ", " << Name(format) << ", group " << group << ", token "
              << token;
        }
      }
    }
  }
}

TEST(NanTest, OfDistantTokensIsNoReasonToSkipThem) {
  const AttentionShape shape = Shape(2 * TwoLayers::kHeads, TwoLayers::kHeads, 64);
  for (const int spoiled : {0, 1}) {  // of KV head 0: the near segment, the distant one
    for (const int slots : {1, 40, 100}) {
      TwoLayers layers(shape, {CacheFormat{Encoding::kF32}}, 100, 100);
      for (int slot = 0; slot < slots; ++slot) {
        Put(ElementType::kF32, KeyAddress(layers.pool.view(), layers.lower[spoiled], 0, slot, 5),
            NAN);
      }
      const auto run = [&](AttentionBackend& backend) {
        return RunLayers(backend, shape, {&layers}, layers.pool.view(), Encoding::kF32, 0.5)[0];
      };
      const DistantDecoded expected = run(*MakeReferenceBackend());
      for (const auto& backend : AllBackends()) {
        const DistantDecoded actual = run(*backend);
        const std::string what = absl::StrCat(std::string(backend->name()), ", segment ", spoiled,
                                              ", ", slots, " slots");
        EXPECT_EQ(CountShown(actual.out, expected.out), CountOdd(expected.out)) << what;
        EXPECT_EQ(CountShown(actual.distant_lse, expected.distant_lse),
                  CountOdd(expected.distant_lse))
            << what;
        EXPECT_EQ(actual.counts.skipped, expected.counts.skipped) << what;
      }
    }
  }
}

TEST(NanTest, OfAKeyThatAPromptBorrowsShows) {
  const AttentionShape shape = Shape(8, 2, 64);
  constexpr int kTokens = 90, kToken = 5;
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    const Tensor q = RandomTensor(element, size_t{512} * kTokens, 1);
    const Tensor k = RandomTensor(element, size_t{128} * kTokens, 2);
    const Tensor v = RandomTensor(element, size_t{128} * kTokens, 3);
    const Tensor low_q = RandomTensor(element, size_t{512} * kTokens, 4);
    Tensor low_k = RandomTensor(element, size_t{128} * kTokens, 5);
    low_k.set(kToken * 128 + 64 + 5, NAN);
    const auto run = [&](AttentionBackend& backend) {
      Tensor out = q;
      std::vector<float> lse(size_t{8} * kTokens, 1);
      const std::vector<uint8_t> borrows = {0, 1};
      DistantPrefill distant;
      distant.sinks = 4;
      distant.recent = 20;
      distant.skip = 2;  // never
      distant.borrows = borrows.data();
      distant.low_q = low_q.data();
      distant.low_k = low_k.data();
      DistantCounts counts;
      backend.PrefillDistantAttention(
          shape, kTokens, {element, q.data(), k.data(), v.data(), out.data(), lse.data()}, distant,
          &counts);
      return out.floats();
    };
    const std::vector<float> expected = run(*MakeReferenceBackend());
    EXPECT_GT(CountOdd(expected), 0);
    for (const auto& backend : AllBackends()) {
      EXPECT_EQ(CountShown(run(*backend), expected), CountOdd(expected)) << backend->name();
    }
  }
}

}  // namespace
}  // namespace ziggurat

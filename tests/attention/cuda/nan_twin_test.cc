// A number that is none in a cache or a prompt spreads as far as it does in the reference, however
// work is cut: whoever reads a result must be able to see that it is wrong.

#include <cmath>
#include <string>
#include <vector>

#include "tests/attention/cuda/device_twin.h"
#include "tests/attention/distant_layers.h"

namespace ziggurat::cuda {
namespace {

const AttentionShape kShape = Shape(8, 2, 64);

/// NaNs stand in the same places, and everything else agrees.
void ExpectSame(std::vector<float> actual, std::vector<float> expected, double tolerance,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::isnan(actual[i]), std::isnan(expected[i])) << what << ", number " << i;
    if (std::isnan(expected[i])) actual[i] = expected[i] = 0;
  }
  EXPECT_LE(Deviation(actual, expected), tolerance) << what;
}

int CountNans(const std::vector<float>& x) {
  return static_cast<int>(std::count_if(x.begin(), x.end(), [](float y) { return std::isnan(y); }));
}

/// A key of KV head 1 gets a number that is none, or is none as a whole where it is codes.
void Spoil(Batch& batch, int slot, float number) {
  const SegmentView& segment = batch.segments[0][0];
  const PoolView pool = batch.pool.view();
  if (IsPlain(segment.encoding)) {
    const bool is_f32 = segment.encoding == Encoding::kF32;
    Put(is_f32 ? ElementType::kF32 : ElementType::kBf16, KeyAddress(pool, segment, 1, slot, 17),
        number);
  } else {
    Put(ElementType::kF32, EntryAddress(pool, segment, segment.key_scales, 1, slot), number);
  }
}

// Twelve workers to a processor: the keys of a head are cut into a few stretches, or into many.
TEST(CudaNan, OfAKeySpreadsOverAllStretchesOfItsHead) {
  for (const Encoding encoding : {Encoding::kF32, Encoding::kBf16, Encoding::kInt8}) {
    for (const float number : {NAN, INFINITY}) {
      // Infinite scales are NaN or infinite keys, by the order in which numbers are multiplied.
      if (!IsPlain(encoding) && !std::isnan(number)) continue;
      for (const int slot : {3, 150, 299}) {
        Batch batch({encoding}, kShape, {300});
        Spoil(batch, slot, number);
        const std::vector<float> q = Queries(Encoding::kBf16, kShape, 1, 7);
        const Decoded expected =
            RunDecode(*MakeReferenceBackend(), kShape, batch.items, q, batch.pool.view());
        EXPECT_GT(CountNans(expected.lse), 0);
        EXPECT_LE(CountNans(expected.lse), 4);  // none of the other KV head
        for (const ElementType compute : {ElementType::kF32, ElementType::kBf16}) {
          for (const int multiprocessors : {1, 132}) {
            DeviceTwin twin(compute, multiprocessors);
            const Decoded actual = RunDecode(twin, kShape, batch.items, q, batch.pool.view());
            const std::string what =
                absl::StrCat(Name({encoding}), " in ", Name(compute), ", ", number, " in slot ",
                             slot, ", ", multiprocessors, " multiprocessors");
            ExpectSame(actual.out, expected.out, Tolerance(compute), what);
            ExpectSame(actual.lse, expected.lse, Tolerance(compute), what);
          }
        }
      }
    }
  }
}

// PoD: of tokens near and distant, in the layer that lends its keys and in the one that borrows.
TEST(CudaNan, OfAPoDLayerIsNoReasonToSkip) {
  const AttentionShape shape = Shape(2 * TwoLayers::kHeads, TwoLayers::kHeads, 64);
  for (const int spoiled : {0, 1}) {  // of KV head 0: the near segment, the distant one
    TwoLayers layers(shape, CacheFormat::kF32, 70, 100);
    const SegmentView& segment = layers.lower[spoiled];
    for (int slot = 0; slot < 40; ++slot) {
      Put(ElementType::kF32, KeyAddress(layers.pool.view(), segment, 0, slot, 5), NAN);
    }
    const auto run = [&](AttentionBackend& backend) {
      return RunLayers(backend, shape, {&layers}, layers.pool.view(), Encoding::kF32, 0.5)[0];
    };
    const DistantDecoded expected = run(*MakeReferenceBackend());
    DeviceTwin twin(ElementType::kF32, 132);
    const DistantDecoded actual = run(twin);
    const double tolerance = Tolerance(ElementType::kF32);
    ExpectSame(actual.out, expected.out, tolerance, absl::StrCat("segment ", spoiled));
    ExpectSame(actual.lse, expected.lse, tolerance, absl::StrCat("segment ", spoiled));
    ExpectSame(actual.distant_lse, expected.distant_lse, tolerance,
               absl::StrCat("segment ", spoiled));
    EXPECT_EQ(actual.counts.skipped, expected.counts.skipped);
  }
}

/// Tensors of a prompt, the first `spoiled` keys of which are NaN in KV head 1.
struct Prompt {
  Prompt(ElementType element, int length, int spoiled)
      : n(length),
        q(RandomTensor(element, size_t{512} * length, 1)),
        k(RandomTensor(element, size_t{128} * length, 2)),
        v(RandomTensor(element, size_t{128} * length, 3)),
        low_q(RandomTensor(element, size_t{512} * length, 4)) {
    for (int token = 0; token < spoiled; ++token) k.set(token * 128 + 64 + 5, NAN);
  }
  int n;
  Tensor q, k, v, low_q;
};

Decoded RunPrompt(AttentionBackend& backend, const Prompt& prompt) {
  Decoded result{{}, std::vector<float>(8 * static_cast<size_t>(prompt.n), 1)};
  Tensor out = prompt.q;
  const std::vector<int> offsets = {0, prompt.n};
  backend.PrefillAttention(kShape, {offsets},
                           {out.element, prompt.q.data(), prompt.k.data(), prompt.v.data(),
                            out.data(), result.lse.data()});
  result.out = out.floats();
  return result;
}

Decoded RunDistantPrompt(AttentionBackend& backend, const Prompt& prompt, DistantCounts* counts) {
  Decoded result{{}, std::vector<float>(8 * static_cast<size_t>(prompt.n), 1)};
  Tensor out = prompt.q;
  const std::vector<uint8_t> borrows = {0, 1};
  DistantPrefill distant;
  distant.sinks = 4;
  distant.recent = 20;
  distant.skip = 0.3;
  distant.borrows = borrows.data();
  distant.low_q = prompt.low_q.data();
  distant.low_k = prompt.k.data();
  backend.PrefillDistantAttention(kShape, prompt.n,
                                  {out.element, prompt.q.data(), prompt.k.data(), prompt.v.data(),
                                   out.data(), result.lse.data()},
                                  distant, counts);
  result.out = out.floats();
  return result;
}

// A whole tile of them and more, so that nothing else is the highest for a while.
TEST(CudaNan, OfAPromptSpreads) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    for (const int spoiled : {1, 70}) {
      const Prompt prompt(element, 90, spoiled);
      DeviceTwin twin(element);
      const std::string what = absl::StrCat(Name(element), ", ", spoiled, " keys");
      const Decoded expected = RunPrompt(*MakeReferenceBackend(), prompt);
      const Decoded actual = RunPrompt(twin, prompt);
      ExpectSame(actual.out, expected.out, Tolerance(element), what);
      ExpectSame(actual.lse, expected.lse, Tolerance(element), what);

      DistantCounts counts, expected_counts;
      const Decoded all = RunDistantPrompt(*MakeReferenceBackend(), prompt, &expected_counts);
      const Decoded of_twin = RunDistantPrompt(twin, prompt, &counts);
      ExpectSame(of_twin.out, all.out, Tolerance(element), what + ", distant");
      ExpectSame(of_twin.lse, all.lse, Tolerance(element), what + ", distant");
      EXPECT_EQ(counts.skipped, expected_counts.skipped) << what;
      EXPECT_EQ(counts.attended, expected_counts.attended) << what;
    }
  }
}

}  // namespace
}  // namespace ziggurat::cuda

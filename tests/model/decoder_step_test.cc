// What a step reads besides the tokens: targets, a pool, tests of lazy layers; and what is read of
// a prompt's attention.
#include <utility>
#include <vector>

#include "tests/model/decoder_fixture.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(DecoderTest, ATokenIsOnlyWrittenWhereKeysAndValuesCanBeAlone) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  DecodeInput input = harness.Append(sequence);
  std::vector<DecodeInput::Layer> layers(input.layers.begin(), input.layers.end());
  input.layers = layers;
  Logits logits(200);
  const TokenTarget target = {0, 3};
  SegmentView segment = layers[1].view[0];
  layers[1].view = {&segment, 1};
  layers[1].targets = {&target, 1};
  const auto decode = [&] {
    return harness.runner().Decode({&input, 1}, logits.data()).ToString();
  };
  EXPECT_EQ(decode(), "OK");
  segment.use = SegmentUse::kBorrowedKeys;
  EXPECT_THAT(decode(), HasSubstr("sequence 0: segment 0 takes no single tokens"));
  segment.use = SegmentUse::kOwn;
  segment.encoding = Encoding::kInt4;
  EXPECT_THAT(decode(), HasSubstr("sequence 0: segment 0 takes no single tokens"));
}

TEST_F(DecoderTest, TheMassOfALazyTestIsOfItsTokensAndCountsEachOnce) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  Logits logits(200);
  for (int position = 4; position < 7; ++position) {  // in the last steps no layer is looked at
    DecodeInput input = harness.Append(sequence);
    ASSERT_EQ(input.position, position);
    std::vector<double> mass(3);
    input.lazy_mass = mass.data();
    const auto measure = [&](int sinks, int recent) {
      const LazyTest test{.sinks = sinks, .recent = recent, .last = 1};
      input.lazy_test = &test;
      EXPECT_TRUE(harness.runner().Decode({&input, 1}, logits.data()).ok());
      return mass;
    };
    for (const auto& [sinks, recent] :
         {std::pair(position - 1, 2), {100, 1}, {1, 100}, {100, 100}}) {
      for (const double all : measure(sinks, recent))
        EXPECT_NEAR(all, 1, 1e-5) << sinks << ", " << recent;
    }
    for (const double some : measure(1, position - 1)) EXPECT_LT(some, 1 - 1e-5);
    ++sequence.length;
  }
}

TEST_F(DecoderTest, TheMassOfALazyTestIsOfTheSequencesOwnAttention) {
  DecoderHarness harness = Harness();
  const LazyTest test{.sinks = 2, .recent = 5, .last = 1};
  TestSequence sequences[] = {harness.NewSequence("full", 20, 8),
                              harness.NewSequence("full", 20, 8)};
  std::vector<double> mass[] = {std::vector<double>(3), std::vector<double>(3)};
  std::vector<DecodeInput> inputs;
  for (int i = 0; i < 2; ++i) {
    harness.Prefill({&sequences[i]}, {Ids(20, static_cast<uint32_t>(i))});
    DecodeInput& input = inputs.emplace_back(harness.Append(sequences[i]));
    input.token_id = 1 + i;
    input.lazy_test = &test;
    input.lazy_mass = mass[i].data();
  }
  Logits logits(size_t{2} * 200);
  ASSERT_TRUE(harness.runner().Decode(inputs, logits.data()).ok());
  const std::vector<double> together[] = {mass[0], mass[1]};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(harness.runner().Decode({&inputs[i], 1}, logits.data()).ok());
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_NEAR(together[i][layer], mass[i][layer], 1e-5) << i << ", layer " << layer;
    }
  }
}

TEST_F(DecoderTest, DistantPartsAreCountedInEveryStep) {
  DecoderHarness harness = Harness();
  harness.resources().pod_groups = {Groups()};
  TestSequence sequence = harness.NewSequence("pod(groups=some,sinks=2,recent=10)", 20, 8);
  harness.Prefill({&sequence}, {Ids(20, 1)});
  const DistantCounts& counts = sequence.store->distant_counts;
  // Heads that read another layer's keys: one of layer 1 and one of layer 2.
  for (int step = 0; step < 2; ++step) {
    const size_t before = counts.attended;
    harness.Decode({&sequence}, {1});
    EXPECT_EQ(counts.attended, before + 2);
    EXPECT_EQ(counts.skipped, 0u);
  }
}

TEST_F(DecoderTest, WithoutAPoolNothingIsWrittenMovedOrDecoded) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  TestSequence sequence = harness.NewSequence("full", 4, 8),
               other = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  const DecodeInput input = harness.Append(sequence);
  const auto batch = harness.Begin({&other}, {Ids(4, 2)});
  std::vector<LayerMeasured> measured(1);
  ASSERT_TRUE(batch->AttendLayer(0, NeverPause, &measured).ok());
  LayerWrite write;
  ASSERT_TRUE(other.store->FillLayer(0, measured[0], &write).ok());
  runner.AttachPool({});
  EXPECT_EQ(batch->WriteLayer(0, {&write, 1}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runner.EditCache({}).code(), absl::StatusCode::kFailedPrecondition);
  Logits logits(200);
  EXPECT_EQ(runner.Decode({&input, 1}, logits.data()).code(),
            absl::StatusCode::kFailedPrecondition);
  runner.AttachPool(harness.pool().view());
  EXPECT_TRUE(batch->WriteLayer(0, {&write, 1}).ok());
  EXPECT_TRUE(runner.Decode({&input, 1}, logits.data()).ok());
}

TEST_F(DecoderTest, AttentionIsShownOfKeptRowsRightAfterItWasComputed) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("snapkv(budget=10,window=4)", 20, 8);
  const auto batch = harness.Begin({&sequence}, {Ids(20, 1)});
  std::vector<float> attention(size_t{4} * 5 * 20);
  const auto show = [&](int prompt, int rows) {
    return batch->LastAttention(prompt, rows, attention.data()).code();
  };
  EXPECT_EQ(show(0, 4), absl::StatusCode::kFailedPrecondition) << "nothing has been attended";
  std::vector<LayerMeasured> measured(1);
  ASSERT_TRUE(batch->AttendLayer(0, NeverPause, &measured).ok());
  EXPECT_EQ(show(0, 4), absl::StatusCode::kOk);
  for (const int rows : {0, 5}) EXPECT_EQ(show(0, rows), absl::StatusCode::kInvalidArgument);
  for (const int prompt : {-1, 1}) {
    EXPECT_EQ(show(prompt, 4), absl::StatusCode::kFailedPrecondition);
  }
  const LayerWrite nothing;
  ASSERT_TRUE(batch->WriteLayer(0, {&nothing, 1}).ok());
  EXPECT_EQ(show(0, 4), absl::StatusCode::kFailedPrecondition) << "it may be overwritten";
}

}  // namespace
}  // namespace ziggurat::testing

// Prefill call by call: what is decoded between two of them, pauses inside a layer, requests that
// go half way, two lanes.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/decoder_fixture.h"

namespace ziggurat::testing {
namespace {

class DecoderPrefillTest : public DecoderTest {};

TEST_F(DecoderPrefillTest, DecodingBetweenSlicesOfAPrefillDisturbsNeither) {
  DecoderHarness harness = Harness();
  const auto prompt = Ids(40, 1), other = Ids(25, 2), continuation = Ids(3, 3);
  const auto expected = Alone(harness, "full", prompt, {});
  const auto expected_other = Alone(harness, "full", other, continuation);
  TestSequence decoding = harness.NewSequence("full", 25, 8);
  harness.Prefill({&decoding}, {other});
  TestSequence prefilling = harness.NewSequence("full", 40, 8);
  auto batch = harness.Begin({&prefilling}, {prompt});
  for (int layer = 0; layer < 3; ++layer) {
    harness.PrefillLayer(*batch, layer, {&prefilling});
    const auto logits = harness.Decode({&decoding}, {continuation[layer]});
    EXPECT_LE(RelativeDifference(logits[0], expected_other[layer + 1]), kRounding);
  }
  const auto logits = harness.Finish(std::move(batch), {&prefilling});
  EXPECT_LE(RelativeDifference(logits[0], expected[0]), kRounding);
}

/// Every chunk of rows and every few rows of attention are a part; with `between`, prefill pauses
/// behind each.
std::vector<Logits> PrefillInParts(DecoderHarness& harness,
                                   const std::vector<std::string>& policies,
                                   const std::vector<std::vector<int32_t>>& prompts,
                                   std::function<void()> between) {
  std::vector<TestSequence> sequences;
  for (size_t i = 0; i < policies.size(); ++i) {
    const int tokens = static_cast<int>(prompts[i].size());
    sequences.push_back(harness.NewSequence(policies[i], tokens, 32));
  }
  std::vector<TestSequence*> batch;
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  harness.RunBetweenParts(std::move(between));
  std::vector<Logits> logits = harness.Prefill(batch, prompts);
  harness.RunBetweenParts(nullptr);
  for (int32_t token : {5, 7, 11}) {
    for (Logits& of_step : harness.Decode(batch, std::vector<int32_t>(batch.size(), token))) {
      logits.push_back(std::move(of_step));
    }
  }
  return logits;
}

TEST_F(DecoderPrefillTest, PausesAndWhatIsDecodedInThemChangeNothing) {
  DecoderOptions options = F32();
  options.max_prefill_tokens = 400;
  options.attention_part_flops = 1;  // the reference attends few rows at a time then
  for (const bool is_reference : {true, false}) {
    DecoderHarness harness(dir_, options,
                           is_reference ? MakeReferenceBackend() : MakeBestBackend(2), 1 << 22);
    harness.resources().pod_groups = {Groups()};
    TestSequence other = harness.NewSequence("snapkv(budget=12,window=4)", 40, 100);
    harness.Prefill({&other}, {Ids(40, 9)});
    int pauses = 0;
    const auto decode_another = [&] {
      if (++pauses % 4 == 0 && other.length < 120) harness.Decode({&other}, {3});
    };
    for (const std::vector<std::string>& policies : std::vector<std::vector<std::string>>{
             {"full", "snapkv(budget=12,window=4)", "streaming(sinks=4,recent=20)"},
             {"pod(groups=some,sinks=2,recent=10)", "full", "h2o(heavy=8,recent=6)"},
             {"squeeze(budget=24,p=0.4)", "minicache(start=1,retain=0.1,tail=5)",
              "simlayerkv(threshold=0.4,sinks=2,recent=12,last=8)"}}) {
      const std::vector<std::vector<int32_t>> prompts = {Ids(61, 1), Ids(37, 2), Ids(52, 3)};
      const std::vector<Logits> expected = PrefillInParts(harness, policies, prompts, nullptr);
      pauses = 0;
      EXPECT_EQ(PrefillInParts(harness, policies, prompts, decode_another), expected)
          << policies[0];
      // Between 150 rows in chunks of 16, twice a layer, and between the parts of attention: two
      // rows each, or a prompt.
      EXPECT_GE(pauses, 3 * (2 * 9 + (is_reference ? 75 : 2))) << policies[0];
    }
  }
}

// Prompts whose columns are summed up before and behind others that need no sums; against the same
// in one part.
TEST_F(DecoderPrefillTest, ColumnsAreSummedUpInPartsToo) {
  const std::string dir = dir_ / "long";
  std::string config = kConfig;
  config.replace(config.find(":128,"), 5, ":512,");
  WriteTinyModel(dir, config, 11);
  DecoderOptions whole = F32();
  whole.max_prefill_tokens = 1000;
  DecoderOptions in_parts = whole;
  in_parts.attention_part_flops = 1;
  const std::vector<std::string> full(4, "full");
  const std::vector<std::string> policies = {"h2o(heavy=40,recent=6)", "full",
                                             "h2o(heavy=200,recent=6)", "full"};
  const std::vector<std::vector<int32_t>> prompts = {Ids(300, 1), Ids(37, 2), Ids(180, 3),
                                                     Ids(20, 4)};
  for (const bool is_reference : {true, false}) {
    const auto harness = [&](const DecoderOptions& options) {
      return DecoderHarness(dir, options,
                            is_reference ? MakeReferenceBackend() : MakeBestBackend(1), 1 << 24);
    };
    DecoderHarness one = harness(whole), many = harness(in_parts);
    const std::vector<Logits> expected = PrefillInParts(one, policies, prompts, nullptr);
    int without_sums = 0, pauses = 0;
    PrefillInParts(many, full, prompts, [&] { ++without_sums; });
    EXPECT_EQ(PrefillInParts(many, policies, prompts, [&] { ++pauses; }), expected);
    // Two keys, or chunks of 128, since there are four jobs for two KV heads.
    EXPECT_EQ(pauses - without_sums, 3 * (is_reference ? 150 + 90 : 2 + 1)) << "in three layers";
  }
}

/// Prompts of which one goes in the middle of the second layer of three.
struct OneGoes {
  int parts = 0;               ///< pauses in that layer
  std::vector<Logits> logits;  ///< [prompts] nothing of the one that went

  OneGoes(DecoderHarness& harness, const std::string& policy,
          const std::vector<std::vector<int32_t>>& ids, int goes, int at_part) {
    std::vector<TestSequence> sequences;
    std::vector<TestSequence*> there;
    for (const auto& prompt : ids) {
      sequences.push_back(harness.NewSequence(policy, static_cast<int>(prompt.size()), 8));
    }
    for (TestSequence& sequence : sequences) there.push_back(&sequence);
    auto batch = harness.Begin(there, ids);
    harness.PrefillLayer(*batch, 0, there);
    harness.RunBetweenParts([&] {
      if (++parts != at_part) return;
      batch->Drop(goes);
      there[goes] = nullptr;
      sequences[goes].store.reset();
      sequences[goes].plan.reset();  // as a request takes its plan along
    });
    harness.PrefillLayer(*batch, 1, there);
    harness.RunBetweenParts(nullptr);
    EXPECT_EQ(there[goes], nullptr) << "after " << parts << " parts";
    harness.PrefillLayer(*batch, 2, there);
    logits = harness.Finish(std::move(batch), there);
  }

  /// The others' are those of each prompt alone.
  void ExpectOthersUnharmed(const std::vector<std::vector<Logits>>& alone, int goes,
                            int at_part) const {
    for (int i = 0; i < static_cast<int>(alone.size()); ++i) {
      if (i == goes) continue;
      EXPECT_LE(RelativeDifference(logits[i], alone[i][0]), kRounding)
          << i << " where " << goes << " goes in part " << at_part;
    }
  }
};

TEST_F(DecoderPrefillTest, ARequestThatGoesWhileItsColumnsAreSummedUpIsSkipped) {
  DecoderOptions options = F32();
  options.attention_part_flops = 1;
  DecoderHarness harness(dir_, options, MakeReferenceBackend(), 1 << 22);
  const std::vector<std::vector<int32_t>> ids = {Ids(40, 1), Ids(40, 2)};
  const std::string policy = "h2o(heavy=30,recent=6)";
  std::vector<std::vector<Logits>> expected;
  for (const auto& prompt : ids) expected.push_back(Alone(harness, policy, prompt, {}));
  // 80 rows in chunks of 16, attended by two, are 45 parts before the 40 of the keys; behind those
  // there are four pauses between chunks.
  constexpr int kBefore = 45, kKeys = 40, kBehind = 4;
  for (const int at_part : {kBefore, kBefore + 1, kBefore + 19, kBefore + 20, kBefore + 30}) {
    for (const int goes : {0, 1}) {
      const OneGoes run(harness, policy, ids, goes, at_part);
      const int summed = at_part - kBefore;  // of both, the first one's first
      const int left =
          goes == 0 ? std::max(0, kKeys / 2 - summed) : std::min(kKeys / 2, kKeys - summed);
      EXPECT_LE(run.parts, kBefore + kKeys + kBehind - left)
          << "what is left of it is not computed";
      run.ExpectOthersUnharmed(expected, goes, at_part);
    }
  }
}

TEST_F(DecoderPrefillTest, ARequestThatGoesInAPauseIsSkippedAndItsNeighboursUnharmed) {
  DecoderOptions options = F32();
  options.attention_part_flops = 1;
  DecoderHarness harness(dir_, options, MakeReferenceBackend(), 1 << 22);
  const std::vector<std::vector<int32_t>> ids = {Ids(40, 1), Ids(40, 2), Ids(40, 3)};
  for (const std::string policy : {"full", "squeeze(budget=24,p=0.4)"}) {
    std::vector<std::vector<Logits>> expected;
    for (const auto& prompt : ids) expected.push_back(Alone(harness, policy, prompt, {}));
    for (const int goes : {0, 1, 2}) {
      // Wherever in the second layer it goes: in its rows, before them, behind them.
      for (int at_part : {1, 3, 5, 7, 8, 20, 40, 60, 66, 67, 70, 73}) {
        const OneGoes run(harness, policy, ids, goes, at_part);
        // Between 120 rows in chunks of 16, twice, and between two and two of attention: 73. At the
        // end there may be none of its left.
        EXPECT_LE(run.parts, at_part < 66 ? 72 : 73) << "what is left of it is not computed";
        run.ExpectOthersUnharmed(expected, goes, at_part);
      }
    }
  }
}

TEST_F(DecoderPrefillTest, OfThoseThatHaveGoneNoRowIsComputed) {
  DecoderHarness harness(dir_, F32(), MakeReferenceBackend(), 1 << 22);
  const std::vector<std::vector<int32_t>> ids = {Ids(40, 1), Ids(40, 2), Ids(40, 3)};
  const auto questions_without = [&](const std::vector<int>& gone) {
    std::vector<TestSequence> sequences;
    std::vector<TestSequence*> batch_of;
    for (size_t i = 0; i < ids.size(); ++i) sequences.push_back(harness.NewSequence("full", 40, 8));
    for (TestSequence& sequence : sequences) batch_of.push_back(&sequence);
    const auto batch = harness.Begin(batch_of, ids);
    for (const int prompt : gone) batch->Drop(prompt);
    int questions = 0;
    const auto pause = [&] {
      ++questions;
      return false;
    };
    std::vector<LayerMeasured> measured(ids.size());
    std::vector<double> cosines(ids.size());
    const std::vector<LayerWrite> nothing(ids.size());
    EXPECT_TRUE(batch->AttendLayer(0, pause, &measured).ok());
    EXPECT_TRUE(batch->WriteLayer(0, nothing).ok());
    EXPECT_TRUE(batch->FinishLayer(0, pause, &cosines).ok());
    return questions;
  };
  // Chunks of 16 rows of neighbours, twice, and one part of attention for neighbours.
  EXPECT_EQ(questions_without({}), 7 + 0 + 7);
  EXPECT_EQ(questions_without({0}), 4 + 0 + 4);
  EXPECT_EQ(questions_without({1}), 5 + 1 + 5);
  EXPECT_EQ(questions_without({2}), 4 + 0 + 4);
  EXPECT_EQ(questions_without({0, 2}), 2 + 0 + 2);
  EXPECT_EQ(questions_without({0, 1, 2}), 0);
}

TEST_F(DecoderPrefillTest, OfOneThatHasGoneNothingIsMeasured) {
  DecoderHarness harness = Harness();
  TestSequence first = harness.NewSequence("full", 20, 8),
               second = harness.NewSequence("full", 20, 8);
  const auto batch = harness.Begin({&first, &second}, {Ids(20, 1), Ids(20, 2)});
  batch->Drop(0);
  std::vector<LayerMeasured> measured(2);
  ASSERT_TRUE(batch->AttendLayer(0, NeverPause, &measured).ok());
  EXPECT_EQ(measured[0].kept_tokens, 0);
  EXPECT_EQ(measured[1].kept_tokens, 20);
}

TEST_F(DecoderPrefillTest, BatchesOfTwoLanesSideBySideDisturbNeither) {
  DecoderOptions options = F32();
  options.max_prefill_tokens = 400;
  options.short_prefill_tokens = 60;
  options.attention_part_flops = 1;
  for (const bool is_reference : {true, false}) {
    DecoderHarness harness(dir_, options,
                           is_reference ? MakeReferenceBackend() : MakeBestBackend(2), 1 << 22);
    harness.resources().pod_groups = {Groups()};
    const std::vector<std::string> policies = {"full",
                                               "snapkv(budget=12,window=4)",
                                               "pod(groups=some,sinks=2,recent=10)",
                                               "squeeze(budget=24,p=0.4)",
                                               "minicache(start=1,retain=0.1,tail=5)",
                                               "h2o(heavy=20,recent=6)"};
    const auto long_ids = Ids(110, 1), short_ids = Ids(30, 2);
    for (size_t i = 0; i < policies.size(); ++i) {
      const std::string& of_long = policies[i];
      const std::string& of_short = policies[(i + 1) % policies.size()];
      SCOPED_TRACE(of_long + " beside " + of_short);
      const auto expected_long = Alone(harness, of_long, long_ids, {3, 4});
      const auto expected_short = Alone(harness, of_short, short_ids, {5, 6});
      TestSequence longer = harness.NewSequence(of_long, 110, 32);
      TestSequence shorter = harness.NewSequence(of_short, 30, 32);
      auto batch = harness.Begin({&longer}, {long_ids});
      std::unique_ptr<PromptBatch> beside;
      std::vector<Logits> of_beside;
      // The short prompt begins in the second layer of the long one, a layer in every fifth pause.
      int pauses = 0, layer = 0;
      bool is_inside = false;  // the short prompt pauses, too
      harness.PrefillLayer(*batch, 0, {&longer});
      harness.RunBetweenParts([&] {
        if (is_inside || ++pauses % 5 != 0 || layer > 3) return;
        is_inside = true;
        if (layer == 0) beside = harness.Begin({&shorter}, {short_ids}, 1);
        if (layer < 3) harness.PrefillLayer(*beside, layer, {&shorter});
        if (layer == 3) of_beside = harness.Finish(std::move(beside), {&shorter});
        ++layer;
        is_inside = false;
      });
      harness.PrefillLayer(*batch, 1, {&longer});
      harness.PrefillLayer(*batch, 2, {&longer});
      harness.RunBetweenParts(nullptr);
      ASSERT_EQ(layer, 4) << pauses << " pauses";
      auto of_long_batch = harness.Finish(std::move(batch), {&longer});
      EXPECT_EQ(of_long_batch[0], expected_long[0]);
      EXPECT_EQ(of_beside[0], expected_short[0]);
      const auto decoded = harness.Decode({&longer, &shorter}, {3, 5});
      EXPECT_LE(RelativeDifference(decoded[0], expected_long[1]), kRounding);
      EXPECT_LE(RelativeDifference(decoded[1], expected_short[1]), kRounding);
    }
  }
}

TEST_F(DecoderPrefillTest, ALaneTakesOneBatchAtATimeAndCountsItsBytes) {
  DecoderOptions options = F32();
  options.short_prefill_tokens = 60;
  DecoderHarness harness = Harness(options);
  ModelRunner& runner = harness.runner();
  ASSERT_EQ(runner.lanes().size(), 2u);
  EXPECT_EQ(runner.lanes()[0].max_tokens, 160);
  EXPECT_EQ(runner.lanes()[1].max_tokens, 60);
  EXPECT_EQ(runner.workspace_capacity_bytes(),
            runner.lanes()[0].capacity_bytes + runner.lanes()[1].capacity_bytes);
  options.short_prefill_tokens = 161;
  EXPECT_EQ(Harness(options).runner().lanes()[1].max_tokens, 160) << "no more than the first";
  const auto ids = Ids(60, 1), more = Ids(61, 1);
  CachePlan plan;
  plan.layers.resize(3);
  const PrefillPrompt prompt{ids, &plan}, too_long{more, &plan};
  {
    const auto first = runner.BeginPrefill(0, {&prompt, 1});
    const auto second = runner.BeginPrefill(1, {&prompt, 1});
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(runner.workspace_high_water_bytes(), 2 * runner.WorkspaceBytes(60));
    for (const int lane : {0, 1}) {
      EXPECT_EQ(runner.BeginPrefill(lane, {&prompt, 1}).status().code(),
                absl::StatusCode::kFailedPrecondition);
    }
  }
  for (const int lane : {0, 1}) EXPECT_TRUE(runner.BeginPrefill(lane, {&prompt, 1}).ok());
  EXPECT_EQ(runner.BeginPrefill(1, {&too_long, 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  for (const int lane : {-1, 2}) {
    EXPECT_EQ(runner.BeginPrefill(lane, {&prompt, 1}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(DecoderPrefillTest, ARequestThatIsGoneIsSkippedAndItsNeighbourUnharmed) {
  DecoderHarness harness = Harness();
  const auto gone = Ids(20, 1), stays = Ids(30, 2);
  // Both select, so that the one that is gone would have something to measure.
  TestSequence first = harness.NewSequence("snapkv(budget=12,window=4)", 20, 8);
  TestSequence sequence = harness.NewSequence("full", 30, 8);
  auto batch = harness.Begin({&first, &sequence}, {gone, stays});
  harness.PrefillLayer(*batch, 0, {&first, &sequence});
  harness.PrefillLayer(*batch, 1, {nullptr, &sequence});  // it goes between two layers
  harness.PrefillLayer(*batch, 2, {nullptr, &sequence});
  const auto logits = harness.Finish(std::move(batch), {nullptr, &sequence});
  const auto expected = Alone(harness, "full", stays, {});
  EXPECT_LE(RelativeDifference(logits[1], expected[0]), kRounding);
}

}  // namespace
}  // namespace ziggurat::testing

// What must hold of the decoder whatever the weights: batches equal their members, chunks do not
// show, workspace bytes are those of the formula, and what is wrong is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "hidden_size":64,"intermediate_size":90,"num_hidden_layers":3,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":16,"vocab_size":200,"max_position_embeddings":128,
  "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})";

/// Batches change the order in which a product's rows are blocked, never the sums of a row by more
/// than rounding.
constexpr double kRounding = 2e-6;

class DecoderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           ("ziggurat-decoder-" + std::to_string(getpid()));
    WriteTinyModel(dir_, kConfig, 11);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir_); }

  static DecoderOptions F32(int chunk_tokens = 16) {
    return {.element = ElementType::kF32,
            .threads = 1,
            .max_prefill_tokens = 160,
            .chunk_tokens = chunk_tokens};
  }
  static std::vector<int32_t> Ids(int count, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 200);
    return ids;
  }
  static DecoderHarness Harness(const DecoderOptions& options = F32()) {
    return DecoderHarness(dir_, options, MakeBestBackend(1), 1 << 22);
  }
  /// Logits after the prompt and after each of `continuation`, one sequence by itself.
  static std::vector<Logits> Alone(DecoderHarness& harness, const std::string& policy,
                                   const std::vector<int32_t>& prompt,
                                   const std::vector<int32_t>& continuation) {
    TestSequence sequence = harness.NewSequence(policy, static_cast<int>(prompt.size()), 32);
    std::vector<Logits> logits = harness.Prefill({&sequence}, {prompt});
    for (const int32_t id : continuation) logits.push_back(harness.Decode({&sequence}, {id})[0]);
    return logits;
  }
  static absl::Status Load(const std::filesystem::path& dir) {
    return LoadLlamaDecoder(dir, F32(), MakeReferenceBackend()).status();
  }

  static std::filesystem::path dir_;
};
std::filesystem::path DecoderTest::dir_;

TEST_F(DecoderTest, TokensDrawnOnManyThreadsAreThoseOfEachSampler) {
  DecoderOptions options = F32();
  options.threads = 4;
  DecoderHarness harness = Harness(options);
  const int vocab = harness.shape().vocab_size, sequences = 150;
  const auto sampler = [&](int i) {
    SamplingParameters how;
    how.temperature = i % 7 == 0 ? 0 : 0.5f + static_cast<float>(i % 3);
    how.seed = static_cast<uint64_t>(i);
    if (i % 2 == 0) how.top_p = 0.8f;
    if (i % 3 == 0) how.min_p = 0.01f;
    if (i % 5 == 0) how.top_k = 20;
    if (i % 4 == 0) how.frequency_penalty = 1;
    if (i % 6 == 0) how.logprobs = 3;
    return Sampler(how, {}, vocab);
  };
  std::vector<Sampler> samplers, twins;
  for (int i = 0; i < sequences; ++i) {
    samplers.push_back(sampler(i));
    twins.push_back(sampler(i));
  }
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 2);
  for (int step = 0; step < 5; ++step) {
    std::vector<Logits> logits(sequences, Logits(vocab));
    for (Logits& row : logits) {
      for (float& logit : row) logit = normal(random);
    }
    std::vector<Logits> again = logits;
    const std::vector<int32_t> forbidden = {3, 1000};
    std::vector<TokenDraw> draws;
    std::vector<float*> rows;
    for (int i = 0; i < sequences; ++i) {
      draws.push_back({&samplers[i],
                       i % 2 == 0 ? absl::MakeConstSpan(forbidden) : absl::Span<const int32_t>()});
      rows.push_back(logits[i].data());
    }
    std::vector<SampledToken> tokens(sequences);
    harness.runner().Sample(draws, rows, tokens.data());
    for (int i = 0; i < sequences; ++i) {
      const SampledToken expected = twins[i].Sample(absl::MakeSpan(again[i]), draws[i].forbidden);
      ASSERT_EQ(tokens[i].token_id, expected.token_id) << i << " in step " << step;
      ASSERT_EQ(tokens[i].logprob, expected.logprob) << i;
      ASSERT_EQ(tokens[i].top.size(), expected.top.size()) << i;
      for (size_t k = 0; k < expected.top.size(); ++k) {
        ASSERT_EQ(tokens[i].top[k].token_id, expected.top[k].token_id) << i;
      }
    }
  }
}

TEST_F(DecoderTest, PackedPromptsAndBatchedStepsEqualEachAlone) {
  DecoderHarness harness = Harness();
  const std::vector<std::string> policies = {"full", "streaming(sinks=2,recent=9)",
                                             "snapkv(budget=16,window=4)",
                                             "pyramidkv(budget=16,window=4,beta=4)", "full"};
  const std::vector<int> lengths = {33, 40, 29, 31, 1};
  const std::vector<int32_t> continuation = Ids(12, 99);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<TestSequence> sequences;
  for (size_t i = 0; i < policies.size(); ++i) {
    prompts.push_back(Ids(lengths[i], static_cast<uint32_t>(i)));
    sequences.push_back(harness.NewSequence(policies[i], lengths[i], 32));
  }
  std::vector<TestSequence*> batch;
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  std::vector<std::vector<Logits>> together = {harness.Prefill(batch, prompts)};
  for (const int32_t id : continuation) {
    together.push_back(harness.Decode(batch, std::vector<int32_t>(batch.size(), id)));
  }
  for (size_t i = 0; i < policies.size(); ++i) {
    const auto alone = Alone(harness, policies[i], prompts[i], continuation);
    for (size_t step = 0; step < alone.size(); ++step) {
      EXPECT_LE(RelativeDifference(together[step][i], alone[step]), kRounding)
          << policies[i] << ", step " << step;
    }
  }
  for (TestSequence& sequence : sequences) sequence.cache->Clear();
  EXPECT_EQ(harness.pool().used_blocks(), 0u);
}

/// Layers 0 and 1 share keys in the one head, 1 and 2 in the other.
std::shared_ptr<const PodGroups> Groups() {
  auto groups = std::make_shared<PodGroups>();
  groups->name = "some";
  groups->num_layers = 3;
  groups->num_kv_heads = 2;
  groups->lowest = {0, 0, 0, 1, 2, 1};
  return groups;
}

TEST_F(DecoderTest, EveryMethodGivesInABatchWhatItGivesAlone) {
  DecoderOptions options = F32();
  options.max_prefill_tokens = 800;
  DecoderHarness harness = Harness(options);
  harness.resources().pod_groups = {Groups()};
  const std::vector<std::string> policies = {
      "h2o(heavy=8,recent=6)",
      "simlayerkv(threshold=0.4,sinks=2,recent=12,last=8)",
      "simlayerkv(threshold=0.2,sinks=2,recent=12,decide=decode)",
      "simlayerkv(threshold=0.4,sinks=2,recent=12)+snapkv(budget=20,window=4)",
      "minicache(start=1,retain=0.1,tail=5)",
      "minicache(start=0,retain=0.2,retain_by=threshold,tail=4)",
      "windowkv(budget=20,task=aggregation,review=4,observe=4,group=2)",
      "squeeze(budget=24,p=0.4)",
      "pyramidkv(budget=20,window=4,shape=entropy)",
      "pod(groups=some,sinks=2,recent=10)",
      "pod(groups=some,sinks=2,recent=10,skip=0.6)+snapkv(budget=24,window=4)",
      "kivi(bits=4,group=8,residual=6)",
      "kivi(bits=2,group=4,residual=0)",
      "int8",
      "streaming(sinks=2,recent=20)+kivi(bits=4,group=8,residual=4)",
      "h2o(heavy=8,recent=6)+fp8",
      "pod(groups=some,sinks=2,recent=10)+int8",
      "minicache(start=1,retain=0.1,tail=5)+kivi(bits=4,group=8,residual=4)"};
  const std::vector<int32_t> continuation = Ids(20, 98);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<TestSequence> sequences;
  for (size_t i = 0; i < policies.size(); ++i) {
    prompts.push_back(Ids(31 + static_cast<int>(i), static_cast<uint32_t>(50 + i)));
    sequences.push_back(harness.NewSequence(policies[i], 31 + static_cast<int>(i), 32));
  }
  std::vector<TestSequence*> batch;
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  std::vector<std::vector<Logits>> together = {harness.Prefill(batch, prompts)};
  for (const int32_t id : continuation) {
    together.push_back(harness.Decode(batch, std::vector<int32_t>(batch.size(), id)));
  }
  for (size_t i = 0; i < policies.size(); ++i) {
    EXPECT_TRUE(sequences[i].cache->CheckIntegrity().ok()) << policies[i];
    const auto alone = Alone(harness, policies[i], prompts[i], continuation);
    // Products of another number of rows round otherwise, and a number in the middle between two
    // codes then gets the other one.
    const bool has_codes = policies[i].find("int8") != std::string::npos ||
                           policies[i].find("fp8") != std::string::npos ||
                           policies[i].find("kivi") != std::string::npos;
    for (size_t step = 0; step < alone.size(); ++step) {
      EXPECT_LE(RelativeDifference(together[step][i], alone[step]), has_codes ? 5e-3 : kRounding)
          << policies[i] << ", step " << step;
    }
    const auto full = Alone(harness, "full", prompts[i], continuation);
    EXPECT_GT(RelativeDifference(together.back()[i], full.back()), 1e-4)
        << policies[i] << " does nothing here";
  }
  for (TestSequence& sequence : sequences) sequence.cache->Clear();
  EXPECT_EQ(harness.pool().used_blocks(), 0u);
}

TEST_F(DecoderTest, PodAttendsInPrefillAsItDoesInDecoding) {
  DecoderHarness harness = Harness();
  harness.resources().pod_groups = {Groups()};
  const std::vector<int32_t> ids = Ids(60, 31);
  for (const char* policy :
       {"pod(groups=some,sinks=3,recent=9)", "pod(groups=some,sinks=0,recent=1)",
        "pod(groups=some,sinks=3,recent=9,skip=0.55)", "pod(groups=some,sinks=3,recent=50)"}) {
    const std::vector<int32_t> head(ids.begin(), ids.begin() + 25);
    const std::vector<int32_t> tail(ids.begin() + 25, ids.end());
    TestSequence sequence = harness.NewSequence(policy, 25, 64);
    std::vector<Logits> decoded = harness.Prefill({&sequence}, {head});
    for (const int32_t id : tail) decoded.push_back(harness.Decode({&sequence}, {id})[0]);
    for (const size_t length : {25u, 26u, 33u, 34u, 35u, 47u, 60u}) {
      const std::vector<int32_t> prompt(ids.begin(), ids.begin() + length);
      const Logits whole = Alone(harness, policy, prompt, {})[0];
      EXPECT_LE(RelativeDifference(decoded[length - 25], whole), 5e-6)
          << policy << ", " << length << " tokens";
    }
  }
}

TEST_F(DecoderTest, CosinesOfTheHiddenStateAreThoseOfThePlainModel) {
  const PlainLlama plain(dir_);
  const auto ids = Ids(67, 9), other = Ids(21, 10);
  PlainLlama::Measured expected, expected_other;
  plain.Forward(ids, 67, nullptr, nullptr, nullptr, &expected);
  plain.Forward(other, 21, nullptr, nullptr, nullptr, &expected_other);
  DecoderHarness harness = Harness();
  // Chunks span these two and a third one, which asks for nothing.
  TestSequence first = harness.NewSequence("squeeze(budget=20,p=0.4)", 67, 4);
  TestSequence second = harness.NewSequence("full", 9, 4);
  TestSequence third = harness.NewSequence("squeeze(budget=20,p=0.4)", 21, 4);
  harness.Prefill({&first, &second, &third}, {ids, Ids(9, 11), other});
  ASSERT_EQ(first.cosines.size(), 3u);
  ASSERT_EQ(third.cosines.size(), 3u);
  for (size_t layer = 0; layer < 3; ++layer) {
    EXPECT_NEAR(first.cosines[layer], expected.cosines[layer], 1e-5);
    EXPECT_NEAR(third.cosines[layer], expected_other.cosines[layer], 1e-5);
  }
  EXPECT_TRUE(second.cosines.empty());
}

TEST_F(DecoderTest, ChunkBordersDoNotShow) {
  DecoderHarness chunked = Harness(F32(16)), whole = Harness(F32(160));
  for (const int length : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 127}) {
    const auto prompt = Ids(length, 5);
    const auto a = Alone(chunked, "snapkv(budget=12,window=3)", prompt, {});
    const auto b = Alone(whole, "snapkv(budget=12,window=3)", prompt, {});
    EXPECT_LE(RelativeDifference(a[0], b[0]), kRounding) << length << " tokens";
  }
}

TEST_F(DecoderTest, ABatchOfManyPromptsGetsTheLogitsOfEach) {
  DecoderHarness harness = Harness();  // 40 prompts of one to four tokens: more rows than a chunk
  std::vector<std::vector<int32_t>> prompts;
  std::vector<TestSequence> sequences;
  std::vector<TestSequence*> batch;
  for (int i = 0; i < 40; ++i) {
    prompts.push_back(Ids(1 + i % 4, static_cast<uint32_t>(i)));
    sequences.push_back(harness.NewSequence("full", 1 + i % 4, 1));
  }
  for (TestSequence& sequence : sequences) batch.push_back(&sequence);
  const auto together = harness.Prefill(batch, prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_LE(RelativeDifference(together[i], Alone(harness, "full", prompts[i], {})[0]), kRounding)
        << i;
  }
}

TEST_F(DecoderTest, DecodingBetweenSlicesOfAPrefillDisturbsNeither) {
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

TEST_F(DecoderTest, PausesAndWhatIsDecodedInThemChangeNothing) {
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

TEST_F(DecoderTest, ARequestThatGoesInAPauseIsSkippedAndItsNeighboursUnharmed) {
  DecoderOptions options = F32();
  options.attention_part_flops = 1;
  DecoderHarness harness(dir_, options, MakeReferenceBackend(), 1 << 22);
  const std::vector<std::vector<int32_t>> ids = {Ids(40, 1), Ids(40, 2), Ids(40, 3)};
  std::vector<std::vector<Logits>> expected;
  for (const auto& prompt : ids) expected.push_back(Alone(harness, "full", prompt, {}));
  for (const int goes : {0, 1, 2}) {
    // Wherever in the second layer it goes: in its rows, before them, behind them.
    for (int at_part : {1, 3, 5, 7, 8, 20, 40, 60, 66, 67, 70, 73}) {
      std::vector<TestSequence> sequences;
      for (int i = 0; i < 3; ++i) sequences.push_back(harness.NewSequence("full", 40, 8));
      std::vector<TestSequence*> there = {&sequences[0], &sequences[1], &sequences[2]};
      auto batch = harness.Begin(there, ids);
      harness.PrefillLayer(*batch, 0, there);
      int parts = 0;
      harness.RunBetweenParts([&] {
        if (++parts != at_part) return;
        batch->Drop(goes);
        there[goes] = nullptr;
      });
      harness.PrefillLayer(*batch, 1, there);
      harness.RunBetweenParts(nullptr);
      ASSERT_EQ(there[goes], nullptr) << "after " << parts << " parts";
      // Between 120 rows in chunks of 16, twice, and between two and two of attention: 73. At the
      // end there may be none of its left.
      EXPECT_LE(parts, at_part < 66 ? 72 : 73) << "what is left of it is not computed";
      harness.PrefillLayer(*batch, 2, there);
      const auto logits = harness.Finish(std::move(batch), there);
      for (int i = 0; i < 3; ++i) {
        if (i == goes) continue;
        EXPECT_LE(RelativeDifference(logits[i], expected[i][0]), kRounding)
            << i << " where " << goes << " goes in part " << at_part;
      }
    }
  }
}

TEST_F(DecoderTest, BatchesOfTwoLanesSideBySideDisturbNeither) {
  DecoderOptions options = F32();
  options.max_prefill_tokens = 400;
  options.short_prefill_tokens = 60;
  options.attention_part_flops = 1;
  for (const bool is_reference : {true, false}) {
    DecoderHarness harness(dir_, options,
                           is_reference ? MakeReferenceBackend() : MakeBestBackend(2), 1 << 22);
    harness.resources().pod_groups = {Groups()};
    const std::vector<std::string> policies = {
        "full", "snapkv(budget=12,window=4)", "pod(groups=some,sinks=2,recent=10)",
        "squeeze(budget=24,p=0.4)", "minicache(start=1,retain=0.1,tail=5)"};
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

TEST_F(DecoderTest, ALaneTakesOneBatchAtATimeAndCountsItsBytes) {
  DecoderOptions options = F32();
  options.short_prefill_tokens = 60;
  DecoderHarness harness = Harness(options);
  ModelRunner& runner = harness.runner();
  ASSERT_EQ(runner.lanes().size(), 2u);
  EXPECT_EQ(runner.lanes()[0].max_tokens, 160);
  EXPECT_EQ(runner.lanes()[1].max_tokens, 60);
  EXPECT_EQ(runner.workspace_capacity_bytes(),
            runner.lanes()[0].capacity_bytes + runner.lanes()[1].capacity_bytes);
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

TEST_F(DecoderTest, ARequestThatIsGoneIsSkippedAndItsNeighbourUnharmed) {
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

TEST_F(DecoderTest, Bf16IsCloseToF32) {
  DecoderOptions options = F32();
  options.element = ElementType::kBf16;
  DecoderHarness bf16 = Harness(options), f32 = Harness();
  const auto prompt = Ids(50, 8), continuation = Ids(5, 9);
  const auto rounded = Alone(bf16, "full", prompt, continuation);
  const auto exact = Alone(f32, "full", prompt, continuation);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(RelativeDifference(rounded[i], exact[i]), 4e-2) << i;
    EXPECT_GT(RelativeDifference(rounded[i], exact[i]), 1e-5) << "is this bf16 at all?";
  }
}

TEST_F(DecoderTest, WorkspaceOfABatchIsTheFormulaAndIsReported) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  EXPECT_EQ(runner.workspace_high_water_bytes(), 0u) << "warming up does not count";
  // Room for the longest batch with everything that a plan may ask for.
  const PrefillNeeds everything{.window_rows = -1,
                                .score_heads = 4,
                                .selects = true,
                                .lower_kv = true,
                                .group_qk = true,
                                .stored_score_layers = 3,
                                .recall = true};
  EXPECT_EQ(runner.workspace_capacity_bytes(),
            runner.WorkspaceBytes(160) + runner.PromptNeedsBytes(160, everything));
  const PrefillNeeds window{.window_rows = 4, .score_heads = 2, .selects = true};
  Alone(harness, "snapkv(budget=16,window=4)", Ids(100, 1), {});
  const size_t used = runner.WorkspaceBytes(100) + runner.PromptNeedsBytes(100, window);
  EXPECT_EQ(runner.workspace_high_water_bytes(), used);
  Alone(harness, "full", Ids(50, 1), {});
  EXPECT_EQ(runner.workspace_high_water_bytes(), used);
  // n tokens: residual 4h, q 4HD, k and v 8GD, lse 4H, cos and sin 4D; one chunk: 4(h + 2f + f) and
  // the hidden states of before, 4h.
  const size_t per_token = 4 * 64 + 4 * 64 + 8 * 32 + 4 * 4 + 4 * 16;
  const size_t chunk = 16 * 4 * (64 + 2 * 90 + 90 + 64);
  EXPECT_EQ(runner.WorkspaceBytes(128), 128 * per_token + chunk);
}

TEST_F(DecoderTest, NeedsOfAPromptAreTheSumOfTheirParts) {
  DecoderHarness harness = Harness();
  const auto bytes = [&](const PrefillNeeds& needs) {
    return harness.runner().PromptNeedsBytes(128, needs);
  };
  // H = 4, G = 2, D = 16, 3 layers, f32, n = 128.
  EXPECT_EQ(bytes({}), 0u);
  EXPECT_EQ(bytes({.window_rows = 8}), 8u * 4 * 64);
  EXPECT_EQ(bytes({.window_rows = 500}), 128u * 4 * 64) << "no more rows than tokens";
  EXPECT_EQ(bytes({.window_rows = -1}), 128u * 4 * 64);
  EXPECT_EQ(bytes({.score_heads = 4}), 4u * 4 * 128);
  EXPECT_EQ(bytes({.selects = true}), 2u * 4 * 128);
  EXPECT_EQ(bytes({.lower_kv = true}), 2u * 4 * 128 + 2u * 4 * 128 + 2u * 128 * 4 * 32)
      << "angles, the retained, K and V";
  EXPECT_EQ(bytes({.group_qk = true}), 128u * 4 * (64 + 32));
  EXPECT_EQ(bytes({.stored_score_layers = 3}), 3u * 2 * 4 * 128);
  EXPECT_EQ(bytes({.recall = true}), 2u * 4 * 128);
}

TEST_F(DecoderTest, WrongPromptsAreRefusedAndTheRunnerStaysUsable) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  CachePlan plan;
  plan.layers.resize(3);
  const auto refusal = [&](const std::vector<int32_t>& ids) {
    const PrefillPrompt prompt{ids, &plan};
    return runner.BeginPrefill(0, {&prompt, 1}).status();
  };
  EXPECT_EQ(runner.BeginPrefill(0, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({3, 200}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refusal({3, -1}).message()), HasSubstr("-1"));
  EXPECT_EQ(refusal(Ids(129, 1)).code(), absl::StatusCode::kInvalidArgument) << "over the context";
  EXPECT_EQ(refusal(Ids(120, 1)).code(), absl::StatusCode::kOk);
  const auto ids = Ids(81, 1);
  const PrefillPrompt two[] = {{ids, &plan}, {ids, &plan}};
  EXPECT_EQ(runner.BeginPrefill(0, two).status().code(), absl::StatusCode::kResourceExhausted);
  plan.layers.pop_back();
  EXPECT_EQ(refusal({1}).code(), absl::StatusCode::kInternal) << "a plan for two of three layers";
  EXPECT_EQ(Alone(harness, "full", Ids(10, 1), {1}).size(), 2u);
}

TEST_F(DecoderTest, LayersOutOfOrderAreRefused) {
  DecoderHarness harness = Harness();
  const auto ids = Ids(8, 1);
  TestSequence sequence = harness.NewSequence("full", 8, 8);
  const PrefillPrompt prompt{ids, &sequence.plan->plan};
  std::vector<LayerMeasured> measured(1);
  std::vector<double> cosines(1);
  const LayerWrite nothing;
  const auto begun = harness.runner().BeginPrefill(0, {&prompt, 1});
  ASSERT_TRUE(begun.ok());
  PromptBatch& batch = **begun;
  EXPECT_EQ(batch.AttendLayer(1, NeverPause, &measured).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(batch.WriteLayer(0, {&nothing, 1}).code(), absl::StatusCode::kFailedPrecondition)
      << "it has not been attended";
  ASSERT_TRUE(batch.AttendLayer(0, NeverPause, &measured).ok());
  EXPECT_THAT(batch.AttendLayer(0, NeverPause, &measured).status().ToString(),
              HasSubstr("layer 0, its projection, while layer 0, its write, is next"));
  EXPECT_EQ(batch.FinishLayer(0, NeverPause, &cosines).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "it has not been written";
  EXPECT_EQ(batch.LastLogits(nullptr).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(batch.WriteLayer(0, {}).code(), absl::StatusCode::kInternal)
      << "no writes for one prompt";
  EXPECT_TRUE(batch.WriteLayer(0, {&nothing, 1}).ok());
  EXPECT_TRUE(batch.FinishLayer(0, NeverPause, &cosines).ok());
}

TEST_F(DecoderTest, WrongDecodeInputsAreRefused) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  const absl::Span<const DecodeInput::Layer> appended = harness.Append(sequence);
  const std::vector<DecodeInput::Layer> layers(appended.begin(), appended.end());
  Logits logits(200);
  const auto decode = [&](DecodeInput input) {
    return harness.runner().Decode({&input, 1}, logits.data());
  };
  const int step = sequence.store->step();
  EXPECT_EQ(decode({200, 4, layers, step}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({-1, 4, layers, step}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({1, 128, layers, step}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({1, 4, absl::MakeSpan(layers).subspan(1), step}).code(),
            absl::StatusCode::kInternal);
  EXPECT_THAT(decode({1, 4, layers, step - 1}).ToString(), HasSubstr("as of step 1 in step 0"));
  const auto with_targets = [&](const std::vector<TokenTarget>& targets) {
    auto wrong = layers;
    wrong[1].targets = targets;
    return decode({1, 4, wrong, step}).ToString();
  };
  EXPECT_THAT(with_targets({{0, 5}}), HasSubstr("segment 0 has no slot 5"));
  EXPECT_THAT(with_targets({{0, -2}}), HasSubstr("segment 0 has no slot -2"));
  EXPECT_THAT(with_targets({{0, TokenTarget::kLowestScore}}), HasSubstr("no slot -1"))
      << "only a scored segment evicts";
  EXPECT_THAT(with_targets({{1, 0}}), HasSubstr("there is no segment 1"));
  EXPECT_THAT(with_targets({}), HasSubstr("0 of 2 KV heads"));
  EXPECT_THAT(with_targets({{0, 4}, {0, 4}}), HasSubstr("4 of 2 KV heads"));
  EXPECT_TRUE(decode({1, 4, layers, step}).ok());
  EXPECT_TRUE(harness.runner().Decode({}, nullptr).ok());
}

TEST_F(DecoderTest, WritesThatItCannotDoNameLayerAndPrompt) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  const auto ids = Ids(30, 1);
  const auto write = [&](int slots, const TokenRange& range) {
    TestSequence sequence = harness.NewSequence("snapkv(budget=10,window=4)", 30, 8);
    LayerBlockTable& table = sequence.cache->layer(0);
    const int segment = table.AddSegment({.format = CacheFormat::kF32});
    EXPECT_TRUE(table.Extend(segment, slots).ok());
    const PrefillPrompt prompt{ids, &sequence.plan->plan};
    const auto batch = runner.BeginPrefill(0, {&prompt, 1});
    EXPECT_TRUE(batch.ok());
    std::vector<LayerMeasured> measured(1);
    EXPECT_TRUE((*batch)->AttendLayer(0, NeverPause, &measured).ok());
    EXPECT_EQ(measured[0].kept_tokens, 10);
    LayerWrite one;
    one.view = table.view();
    one.ranges = {range};
    return (*batch)->WriteLayer(0, {&one, 1}).ToString();
  };
  EXPECT_EQ(write(10, {0, 0, 0, 10}), "OK");
  EXPECT_THAT(write(9, {0, 0, 0, 10}), HasSubstr("layer 0, prompt 0: tokens 0 .. 10 of 10"));
  EXPECT_THAT(write(40, {0, 0, 0, 30}), HasSubstr("tokens 0 .. 30 of 10")) << "of those that stay";
  EXPECT_THAT(write(10, {1, 0, 0, 1}), HasSubstr("segment 1"));
  EXPECT_THAT(write(10, {0, -1, 0, 1}), HasSubstr("slots -1 .. 0"));
}

TEST_F(DecoderTest, EditsThatItCannotDoAreNamed) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  const SegmentView* segment = &sequence.cache->layer(0).view()[0];
  const CacheEdit beyond = CopyEdit{segment, 2, {}, 3, segment, 0};
  EXPECT_THAT(harness.runner().EditCache({&beyond, 1}).ToString(),
              HasSubstr("a copy of 3 tokens from slot 2 of 4"));
  const CacheEdit fits = CopyEdit{segment, 2, {}, 2, segment, 0};
  EXPECT_TRUE(harness.runner().EditCache({&fits, 1}).ok());
}

TEST_F(DecoderTest, WrongWeightsAreRefusedByName) {
  const auto dir = dir_ / "wrong";
  std::filesystem::create_directories(dir);
  std::filesystem::copy_file(dir_ / "config.json", dir / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ifstream in(dir_ / "model.safetensors", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto write = [&](const std::string& contents) {
    std::ofstream(dir / "model.safetensors", std::ios::binary) << contents;
  };
  std::string with_nan = bytes;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  with_nan.replace(with_nan.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
  write(with_nan);
  EXPECT_THAT(Load(dir).ToString(), HasSubstr("lm_head.weight"));
  write(bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(Load(dir).code(), absl::StatusCode::kDataLoss);
  std::string renamed = bytes;
  renamed.replace(renamed.find("layers.1.mlp.up_proj"), 20, "layers.1.mlp.uq_proj");
  write(renamed);
  EXPECT_THAT(Load(dir).ToString(), HasSubstr("model.layers.1.mlp.up_proj.weight"));
  std::filesystem::remove(dir / "model.safetensors");
  EXPECT_EQ(Load(dir).code(), absl::StatusCode::kNotFound);
}

TEST_F(DecoderTest, OptionsOutOfRangeAreRefused) {
  for (const DecoderOptions& options :
       {DecoderOptions{.threads = 0}, DecoderOptions{.max_prefill_tokens = 0},
        DecoderOptions{.chunk_tokens = 8}}) {
    EXPECT_EQ(LoadLlamaDecoder(dir_, options, MakeReferenceBackend()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ziggurat::testing

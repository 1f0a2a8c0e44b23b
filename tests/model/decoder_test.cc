// What must hold of the decoder whatever the weights: batches equal their members, chunks do not
// show, workspace bytes are those of the formula, and what is wrong is refused by name.
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "tests/model/decoder_fixture.h"
#include "tests/support/files.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

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
    Logits logits(static_cast<size_t>(sequences) * vocab);
    for (float& logit : logits) logit = normal(random);
    Logits again = logits;
    const std::vector<int32_t> forbidden = {3, 1000};
    std::vector<TokenDraw> draws;
    for (int i = 0; i < sequences; ++i) {
      draws.push_back({&samplers[i],
                       i % 2 == 0 ? absl::MakeConstSpan(forbidden) : absl::Span<const int32_t>()});
    }
    constexpr int kGone = 5;
    draws[kGone].sampler = nullptr;
    std::vector<SampledToken> tokens(sequences);
    tokens[kGone].token_id = -7;
    harness.runner().Sample(draws, logits.data(), tokens.data());
    for (int i = 0; i < sequences; ++i) {
      if (i == kGone) {
        EXPECT_EQ(tokens[i].token_id, -7);
        continue;
      }
      const auto row = absl::MakeSpan(again).subspan(static_cast<size_t>(i) * vocab, vocab);
      const SampledToken expected = twins[i].Sample(row, draws[i].forbidden);
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
  for (TestSequence& sequence : sequences) sequence.store.reset();
  EXPECT_EQ(harness.pool().used_blocks(), 0u);
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
    EXPECT_TRUE(sequences[i].store->cache().CheckIntegrity().ok()) << policies[i];
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
  for (TestSequence& sequence : sequences) sequence.store.reset();
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
  DecoderHarness whole = Harness(F32(160));
  for (const int chunk : {16, 23}) {
    DecoderHarness chunked = Harness(F32(chunk));
    for (const int length : {1, 2, 15, 16, 17, 31, 32, 33, 46, 47, 48, 49, 127}) {
      const auto prompt = Ids(length, 5);
      const auto a = Alone(chunked, "snapkv(budget=12,window=3)", prompt, {});
      const auto b = Alone(whole, "snapkv(budget=12,window=3)", prompt, {});
      EXPECT_LE(RelativeDifference(a[0], b[0]), kRounding)
          << length << " tokens, " << chunk << " at a time";
    }
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

/// All that a plan may ask for.
constexpr PrefillNeeds kEverything{.window_rows = -1,
                                   .score_heads = 4,
                                   .selects = true,
                                   .lower_kv = true,
                                   .group_qk = true,
                                   .stored_score_layers = 3,
                                   .recall = true};

TEST_F(DecoderTest, WorkspaceOfABatchIsTheFormulaAndIsReported) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  EXPECT_EQ(runner.workspace_high_water_bytes(), 0u) << "warming up does not count";
  // Room for the longest batch with everything that a plan may ask for.
  EXPECT_EQ(runner.workspace_capacity_bytes(),
            runner.WorkspaceBytes(160) + runner.PromptNeedsBytes(160, kEverything));
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
  EXPECT_EQ(runner.WorkspaceBytes(8), 8 * per_token + chunk / 2) << "half a chunk";
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
  // Tokens and what one prompt of all of them needs have room, but not what each of many does.
  plan.needs = kEverything;
  const std::vector<int32_t> short_ids = {1};
  const std::vector<PrefillPrompt> many(160, PrefillPrompt{short_ids, &plan});
  EXPECT_EQ(refusal(Ids(120, 1)).code(), absl::StatusCode::kOk);
  EXPECT_THAT(runner.BeginPrefill(0, many).status().ToString(),
              HasSubstr("of 160 tokens that needs"));
  for (const size_t layers : {2, 4}) {
    plan.layers.resize(layers);
    EXPECT_EQ(refusal({1}).code(), absl::StatusCode::kInternal) << "the model has three layers";
  }
  const PrefillPrompt without_plan{short_ids, nullptr};
  EXPECT_EQ(runner.BeginPrefill(0, {&without_plan, 1}).status().code(),
            absl::StatusCode::kInternal);
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
  const LayerWrite two[2];
  EXPECT_EQ(batch.WriteLayer(0, two).code(), absl::StatusCode::kInternal);
  for (int layer = 0; layer < 3; ++layer) {
    if (layer > 0) {
      ASSERT_TRUE(batch.AttendLayer(layer, NeverPause, &measured).ok());
    }
    EXPECT_TRUE(batch.WriteLayer(layer, {&nothing, 1}).ok());
    EXPECT_TRUE(batch.FinishLayer(layer, NeverPause, &cosines).ok());
    if (layer == 2) continue;
    EXPECT_EQ(batch.LastLogits(nullptr).code(), absl::StatusCode::kFailedPrecondition) << layer;
  }
  for (const int no_prompt : {-1, 1}) {
    std::vector<int32_t> kept;
    EXPECT_EQ(batch.SelectStored(no_prompt, 0, {.best = 1, .recent = 1}, &kept).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(batch.AttendLayer(3, NeverPause, &measured).status().ToString(),
              HasSubstr("layer 3, its projection, while layer 3"))
      << "there is none";
}

TEST_F(DecoderTest, WrongDecodeInputsAreRefused) {
  DecoderHarness harness = Harness();
  TestSequence sequence = harness.NewSequence("full", 4, 8);
  harness.Prefill({&sequence}, {Ids(4, 1)});
  const DecodeInput input = harness.Append(sequence);
  const std::vector<DecodeInput::Layer> layers(input.layers.begin(), input.layers.end());
  Logits logits(200);
  const auto decode = [&](const DecodeInput& wrong) {
    return harness.runner().Decode({&wrong, 1}, logits.data());
  };
  const int step = input.step;
  EXPECT_EQ(decode({200, 4, layers, step}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode({-1, 4, layers, step}).code(), absl::StatusCode::kInvalidArgument);
  for (const int position : {-1, 128}) {
    EXPECT_EQ(decode({1, position, layers, step}).code(), absl::StatusCode::kInvalidArgument);
  }
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
  // What changed in this step is looked at, also where it is known that it did.
  auto wrong = layers;
  const TokenTarget nowhere = {0, 5};
  wrong[2].targets = {&nowhere, 1};
  EXPECT_EQ(decode({1, 4, wrong, step, /*changed_at=*/step}).code(), absl::StatusCode::kInternal);
  const std::vector<TokenTarget> two = {{0, 4}, {0, 4}};
  wrong[2].targets = two;
  EXPECT_THAT(decode({1, 4, wrong, step + 1}).ToString(), HasSubstr("2 targets as of step 1"));
  EXPECT_TRUE(decode({1, 4, layers, step}).ok());
  EXPECT_TRUE(harness.runner().Decode({}, nullptr).ok());
}

TEST_F(DecoderTest, WritesThatItCannotDoNameLayerAndPrompt) {
  DecoderHarness harness = Harness();
  ModelRunner& runner = harness.runner();
  const auto ids = Ids(30, 1);
  const auto write = [&](int slots, const TokenRange& range) {
    TestSequence sequence = harness.NewSequence("snapkv(budget=10,window=4)", 30, 8);
    LayerBlockTable table(&harness.pool(), sequence.plan->geometry);
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
  const SegmentView* segment = &sequence.store->cache().layer(0).view()[0];
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
  const std::string bytes = ReadFile(dir_ / "model.safetensors");
  const auto write = [&](const std::string& contents) {
    WriteFile(dir / "model.safetensors", contents);
  };
  std::string with_nan = bytes;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  with_nan.replace(with_nan.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
  write(with_nan);
  EXPECT_THAT(Load(dir).ToString(),
              HasSubstr((dir / "model.safetensors").string() + ": tensor \"lm_head.weight\""));
  write(bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(Load(dir).code(), absl::StatusCode::kDataLoss);
  std::string renamed = bytes;
  renamed.replace(renamed.find("layers.1.mlp.up_proj"), 20, "layers.1.mlp.uq_proj");
  write(renamed);
  EXPECT_THAT(Load(dir).ToString(), HasSubstr("model.layers.1.mlp.up_proj.weight"));
  std::filesystem::remove(dir / "model.safetensors");
  EXPECT_EQ(Load(dir).code(), absl::StatusCode::kNotFound);
}

TEST_F(DecoderTest, AWeightThatIsNotFiniteIsNamedByItsPlaceInTheWholeTensor) {
  const auto dir = dir_ / "infinite";
  std::string config = kConfig;
  const std::string vocabulary = "\"vocab_size\":200";
  // So many that threads share the matrix in several pieces.
  config.replace(config.find(vocabulary), vocabulary.size(), "\"vocab_size\":20000");
  WriteTinyModel(dir, config, 5);
  std::fstream file(dir / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-static_cast<int>(sizeof(float)), std::ios::end);
  const float infinity = std::numeric_limits<float>::infinity();
  file.write(reinterpret_cast<const char*>(&infinity), sizeof infinity);
  file.close();
  EXPECT_THAT(Load(dir).ToString(),
              HasSubstr("\"lm_head.weight\": element 1279999 of [20000, 64] is inf"));
  DecoderOptions bf16 = F32();
  bf16.element = ElementType::kBf16;
  EXPECT_THAT(LoadLlamaDecoder(dir, bf16, MakeReferenceBackend()).status().ToString(),
              HasSubstr("\"lm_head.weight\": element 1279999 of [20000, 64] is inf"));
}

TEST_F(DecoderTest, OptionsOutOfRangeAreRefused) {
  for (const DecoderOptions& options :
       {DecoderOptions{.threads = 0}, DecoderOptions{.max_prefill_tokens = 0},
        DecoderOptions{.short_prefill_tokens = -1}, DecoderOptions{.chunk_tokens = 15},
        DecoderOptions{.attention_part_flops = 0},
        DecoderOptions{.attention_part_flops = std::numeric_limits<double>::quiet_NaN()}}) {
    EXPECT_EQ(LoadLlamaDecoder(dir_, options, MakeReferenceBackend()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ziggurat::testing

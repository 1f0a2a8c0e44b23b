// The decoder against a plain model in double, on random models of every kind of shape; and what
// policies keep, against a plain computation that masks everything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "absl/strings/str_format.h"
#include "compression/policy.h"
#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"
#include "tests/support/files.h"

namespace ziggurat::testing {
namespace {

constexpr double kTolerance = 1e-5;
constexpr uint64_t kSeed = 7;  // of weights

struct TinyModel {
  const char* name;
  const char* config;
  TinyFiles files = {};
};
void PrintTo(const TinyModel& model, std::ostream* out) { *out << model.name; }

const TinyModel kModels[] = {
    {"LlamaGrouped", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":48,"intermediate_size":100,"num_hidden_layers":3,"num_attention_heads":6,
      "num_key_value_heads":2,"head_dim":16,"vocab_size":97,"max_position_embeddings":256,
      "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})"},
    {"LlamaTied", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":4,"vocab_size":80,"max_position_embeddings":256,
      "rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true})"},
    {"LlamaBiasesOddSizes", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":40,"intermediate_size":85,"num_hidden_layers":2,"num_attention_heads":2,
      "num_key_value_heads":1,"head_dim":24,"vocab_size":101,"max_position_embeddings":256,
      "attention_bias":true,"mlp_bias":true,
      "rms_norm_eps":1e-6,"rope_theta":500000.0,"tie_word_embeddings":false})"},
    {"Llama31Rope", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":2,
      "num_key_value_heads":1,"head_dim":32,"vocab_size":64,"max_position_embeddings":512,
      "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":64},
      "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})"},
    {"Qwen2", R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2",
      "hidden_size":56,"intermediate_size":120,"num_hidden_layers":2,"num_attention_heads":7,
      "num_key_value_heads":1,"vocab_size":90,"max_position_embeddings":256,
      "rms_norm_eps":1e-6,"rope_theta":1000000.0,"tie_word_embeddings":true,
      "use_sliding_window":false})"},
    {"Mistral", R"({"architectures":["MistralForCausalLM"],"model_type":"mistral",
      "hidden_size":64,"intermediate_size":112,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"vocab_size":70,"max_position_embeddings":256,
      "sliding_window":null,"rms_norm_eps":1e-5,"rope_theta":10000.0,
      "tie_word_embeddings":false})"},
    {"HeadsOfTenChannels", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":40,"intermediate_size":72,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"vocab_size":60,"max_position_embeddings":256,"attention_bias":true,
      "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})"},
    {"HeadsOfTwoChannels", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":48,"intermediate_size":64,"num_hidden_layers":2,"num_attention_heads":24,
      "num_key_value_heads":24,"vocab_size":60,"max_position_embeddings":256,
      "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true})"},
    // With an epsilon so large that a norm without it gives other logits.
    {"LinearRope", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "hidden_size":48,"intermediate_size":72,"num_hidden_layers":2,"num_attention_heads":2,
      "num_key_value_heads":1,"head_dim":24,"vocab_size":60,"max_position_embeddings":256,
      "rope_scaling":{"type":"linear","factor":2.5},
      "rms_norm_eps":0.05,"rope_theta":10000.0,"tie_word_embeddings":false})"},
};

std::vector<int32_t> RandomIds(int count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  return ids;
}

std::vector<int32_t> Head(const std::vector<int32_t>& ids, int count) {
  return {ids.begin(), ids.begin() + count};
}

class DecoderAgainstPlain : public ::testing::TestWithParam<TinyModel> {
 protected:
  void SetUp() override {
    WriteTinyModel(folder_.path(), GetParam().config, kSeed, GetParam().files);
  }

  /// Prefills the first `prompt` of `ids` under `policy`, then decodes the others one by one.
  std::vector<Logits> Run(DecoderHarness& harness, const std::string& policy,
                          const std::vector<int32_t>& ids, int prompt) {
    TestSequence sequence =
        harness.NewSequence(policy, prompt, static_cast<int>(ids.size()) - prompt + 1);
    std::vector<Logits> logits = harness.Prefill({&sequence}, {Head(ids, prompt)});
    for (size_t i = prompt; i < ids.size(); ++i) {
      logits.push_back(harness.Decode({&sequence}, {ids[i]})[0]);
    }
    EXPECT_TRUE(sequence.store->cache().CheckIntegrity().ok());
    return logits;
  }

  /// Runs `policy` with every backend and compares with rows prompt - 1, prompt, ... of `expected`.
  void ExpectRows(const std::string& policy, const std::vector<int32_t>& ids, int prompt,
                  const std::vector<Logits>& expected) {
    for (const std::string& backend : BackendNames()) {
      DecoderHarness harness(
          folder_.path(),
          {.element = ElementType::kF32, .max_prefill_tokens = 256, .chunk_tokens = 16},
          MakeBackend(backend, 1), 1 << 22);
      const std::vector<Logits> logits = Run(harness, policy, ids, prompt);
      for (size_t i = 0; i < logits.size(); ++i) {
        EXPECT_LE(RelativeDifference(logits[i], expected[prompt - 1 + i]), kTolerance)
            << backend << ", " << policy << ", step " << i;
      }
    }
  }

  TemporaryFolder folder_;
};

TEST_P(DecoderAgainstPlain, PrefillAndDecodeGiveTheLogitsOfThePlainModel) {
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(75, plain.config().vocab_size, 1);
  ExpectRows("full", ids, 61, plain.Forward(ids));
}

TEST_P(DecoderAgainstPlain, StreamingAttendsToSinksAndRecentTokensOnly) {
  constexpr int kSinks = 3, kRecent = 20;
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(75, plain.config().vocab_size, 2);
  const auto expected = plain.Forward(ids, 50, nullptr, [](int, int, int query, int key) {
    return key < kSinks || key > query - kRecent;
  });
  ExpectRows("streaming(sinks=3,recent=20)", ids, 50, expected);
}

TEST_P(DecoderAgainstPlain, SnapKvAttendsToTheBestByWindowScoresAndWhatFollows) {
  constexpr int kPrompt = 60, kBudget = 20, kWindow = 6, kKernel = 3;
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(70, plain.config().vocab_size, 3);
  const int group = plain.config().num_q_heads / plain.config().num_kv_heads;
  std::vector<std::vector<std::set<int>>> kept(plain.config().num_layers);  // [layer][KV head]

  const auto select = [&](int layer, const PlainLlama::Probabilities& attention) {
    kept[layer].resize(plain.config().num_kv_heads);
    for (int g = 0; g < plain.config().num_kv_heads; ++g) {
      const int candidates = kPrompt - kWindow;
      std::vector<double> scores(candidates, 0.0), pooled(candidates, 0.0);
      for (int h = g * group; h < (g + 1) * group; ++h) {
        for (int i = candidates; i < kPrompt; ++i) {
          for (int j = 0; j < candidates; ++j) scores[j] += attention[h][i][j] / (group * kWindow);
        }
      }
      for (int j = 0; j < candidates; ++j) {
        for (int o = j - kKernel / 2; o <= j + kKernel / 2; ++o) {
          if (o >= 0 && o < candidates) pooled[j] += scores[o] / kKernel;
        }
      }
      std::vector<int> order(candidates);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return pooled[a] > pooled[b]; });
      kept[layer][g].insert(order.begin(), order.begin() + (kBudget - kWindow));
    }
  };
  const auto expected = plain.Forward(ids, kPrompt, select, [&](int layer, int head, int, int key) {
    return key >= kPrompt - kWindow || kept[layer][head].count(key) > 0;
  });
  ExpectRows("snapkv(budget=20,window=6,kernel=3,pool=avg)", ids, kPrompt, expected);
}

/// The indices of the `count` largest, ties to the lower one.
std::vector<int> Best(const std::vector<double>& scores, int count) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(count);
  return order;
}

TEST_P(DecoderAgainstPlain, H2oAttendsToTheHeaviestAndTheRecentAndEvictsInEveryStep) {
  constexpr int kPrompt = 50, kHeavy = 9, kRecent = 7;
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(70, plain.config().vocab_size, 5);
  const int group = plain.config().num_q_heads / plain.config().num_kv_heads;
  // [layer][KV head]: the tokens that are held, and what they have received so far.
  std::vector<std::vector<std::map<int, double>>> held(plain.config().num_layers);
  double margin = 1;  // between the token that goes and the next

  const auto select = [&](int layer, const PlainLlama::Probabilities& attention) {
    held[layer].resize(plain.config().num_kv_heads);
    for (int g = 0; g < plain.config().num_kv_heads; ++g) {
      std::vector<double> sums(kPrompt, 0.0);
      for (int h = g * group; h < (g + 1) * group; ++h) {
        for (int i = 0; i < kPrompt; ++i) {
          for (int j = 0; j <= i; ++j) sums[j] += attention[h][i][j] / group;
        }
      }
      const std::vector<double> older(sums.begin(), sums.end() - kRecent);
      for (const int j : Best(older, kHeavy)) held[layer][g][j] = sums[j];
      for (int j = kPrompt - kRecent; j < kPrompt; ++j) held[layer][g][j] = sums[j];
    }
  };
  const auto sees = [&](int layer, int head, int query, int key) {
    return key == query || held[layer][head].count(key) > 0;
  };
  const auto evict = [&](int layer, int query, const std::vector<std::vector<double>>& attention) {
    for (int g = 0; g < plain.config().num_kv_heads; ++g) {
      std::map<int, double>& tokens = held[layer][g];
      tokens[query] = 0;
      for (auto& [key, score] : tokens) {
        for (int h = g * group; h < (g + 1) * group; ++h) score += attention[h][key] / group;
      }
      auto least = tokens.begin();
      double second = INFINITY;
      for (auto it = std::next(least); it != tokens.end() && it->first <= query - kRecent; ++it) {
        second = std::min(second, std::max(it->second, least->second));
        if (it->second < least->second) least = it;
      }
      margin = std::min(margin, second - least->second);
      tokens.erase(least);
      ASSERT_EQ(tokens.size(), static_cast<size_t>(kHeavy + kRecent));
    }
  };
  const auto expected = plain.Forward(ids, kPrompt, select, sees, evict);
  ASSERT_GT(margin, 1e-5) << "a tie decides: take other ids";
  ExpectRows("h2o(heavy=9,recent=7)", ids, kPrompt, expected);
}

TEST_P(DecoderAgainstPlain, LazyLayersAttendToSinksAndRecentTokensAndOthersToAll) {
  constexpr int kPrompt = 55, kSinks = 3, kRecent = 12, kLast = 8;
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(75, plain.config().vocab_size, 6);
  const int heads = plain.config().num_q_heads;
  std::vector<double> mass(plain.config().num_layers, 0.0);
  const auto measure = [&](int layer, const PlainLlama::Probabilities& attention) {
    for (int h = 0; h < heads; ++h) {
      for (int i = kPrompt - kLast; i < kPrompt; ++i) {
        for (int j = 0; j <= i; ++j) {
          if (j >= kSinks && j < kPrompt - kRecent) continue;
          mass[layer] += attention[h][i][j] / (heads * kLast);
        }
      }
    }
  };
  // What the prompt attends to does not depend on what is kept of it.
  plain.Forward(ids, kPrompt, measure, nullptr);
  std::vector<double> sorted = mass;
  std::sort(sorted.begin(), sorted.end());
  const double threshold = (sorted.front() + sorted.back()) / 2;
  for (const double value : mass) ASSERT_GT(std::abs(value - threshold), 1e-5);
  const auto expected =
      plain.Forward(ids, kPrompt, nullptr, [&](int layer, int, int query, int key) {
        return mass[layer] <= threshold || key < kSinks || key > query - kRecent;
      });
  ExpectRows(absl::StrFormat("simlayerkv(threshold=%.9f,sinks=3,recent=12,last=8)", threshold), ids,
             kPrompt, expected);
}

TEST_P(DecoderAgainstPlain, LayersThatTheFirstTokenFindsLazyAttendToLessFromTheSecondOn) {
  constexpr int kPrompt = 55, kSinks = 3, kRecent = 12;
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(75, plain.config().vocab_size, 7);
  const int heads = plain.config().num_q_heads;
  std::vector<double> mass(plain.config().num_layers, 0.0);
  const auto measure = [&](int layer, int query,
                           const std::vector<std::vector<double>>& attention) {
    if (query != kPrompt) return;
    for (int h = 0; h < heads; ++h) {
      for (int j = 0; j <= query; ++j) {
        if (j < kSinks || j > query - kRecent) mass[layer] += attention[h][j] / heads;
      }
    }
  };
  plain.Forward(ids, kPrompt, nullptr, nullptr, measure);
  std::vector<double> sorted = mass;
  std::sort(sorted.begin(), sorted.end());
  const double threshold = (sorted.front() + sorted.back()) / 2;
  for (const double value : mass) ASSERT_GT(std::abs(value - threshold), 1e-5);
  const auto expected =
      plain.Forward(ids, kPrompt, nullptr, [&](int layer, int, int query, int key) {
        return query == kPrompt || mass[layer] <= threshold || key < kSinks ||
               key > query - kRecent;
      });
  ExpectRows(
      absl::StrFormat("simlayerkv(threshold=%.9f,sinks=3,recent=12,decide=decode)", threshold), ids,
      kPrompt, expected);
}

TEST_P(DecoderAgainstPlain, WindowKvAttendsToTheWindowsOfItsGroupsFirstLayer) {
  constexpr int kPrompt = 66, kObserve = 5, kReview = 4, kBest = 3;
  constexpr char kPolicy[] =
      "windowkv(budget=24,task=localization,review=4,observe=5,group=2,lambda=3,p=3)";
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(80, plain.config().vocab_size, 8);
  const PolicyContext context{plain.config().num_layers, plain.config().num_q_heads,
                              plain.config().num_kv_heads, plain.config().head_dim};
  const CachePlan plan = (*ParsePolicy(kPolicy))->Plan(context, {kPrompt, 20});
  std::vector<std::set<int>> kept(plain.config().num_layers);
  const auto select = [&](int layer, const PlainLlama::Probabilities& attention) {
    if (layer % 2 == 1) {
      kept[layer] = kept[layer - 1];
      return;
    }
    constexpr int kCandidates = kPrompt - kObserve;
    std::vector<double> windows((kCandidates + kReview - 1) / kReview, 0.0);
    for (const auto& head : attention) {
      for (size_t w = 0; w < windows.size(); ++w) {
        std::vector<double> tokens;
        for (int j = w * kReview; j < std::min<int>((w + 1) * kReview, kCandidates); ++j) {
          tokens.push_back(0);
          for (int i = kCandidates; i < kPrompt; ++i) tokens.back() += head[i][j];
        }
        std::sort(tokens.rbegin(), tokens.rend());
        tokens.resize(std::min<size_t>(tokens.size(), kBest));
        windows[w] += std::accumulate(tokens.begin(), tokens.end(), 0.0) / tokens.size();
      }
    }
    int room = std::get<KeepWindows>(plan.layers[layer].edit).budget;
    for (const int w : Best(windows, static_cast<int>(windows.size()))) {
      const int begin = w * kReview, end = std::min(begin + kReview, kCandidates);
      if (end - begin > room) continue;
      room -= end - begin;
      for (int j = begin; j < end; ++j) kept[layer].insert(j);
    }
  };
  const auto expected = plain.Forward(ids, kPrompt, select, [&](int layer, int, int, int key) {
    return key >= kPrompt - kObserve || kept[layer].count(key) > 0;
  });
  ExpectRows(kPolicy, ids, kPrompt, expected);
}

TEST_P(DecoderAgainstPlain, PoliciesThatKeepEverythingEqualFull) {
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(40, plain.config().vocab_size, 4);
  const auto expected = plain.Forward(ids);
  for (const char* policy :
       {"pyramidkv(budget=200,window=8)", "pyramidkv(budget=200,window=8,shape=entropy)",
        "streaming(sinks=4,recent=100)", "h2o(heavy=20,recent=30)", "windowkv(budget=200)",
        "simlayerkv(threshold=1,sinks=1,recent=4)", "minicache(start=0,retain=1,tail=3)",
        "simlayerkv(threshold=1,sinks=1,recent=4,decide=decode)", "squeeze(budget=200,p=0.5)"}) {
    ExpectRows(policy, ids, 30, expected);
  }
}

TEST_P(DecoderAgainstPlain, CodesComeNear) {
  const PlainLlama plain(folder_.path());
  const auto ids = RandomIds(75, plain.config().vocab_size, 5);
  const auto expected = plain.Forward(ids);
  // Of 256 and of 16 values; codes of other channels would be off by about 1.
  for (const auto& [policy, tolerance] :
       {std::pair("int8", 0.05), std::pair("kivi(bits=4,group=8,residual=8)", 0.3)}) {
    DecoderHarness harness(folder_.path(), {.element = ElementType::kF32}, MakeBestBackend(1),
                           1 << 22);
    const std::vector<Logits> logits = Run(harness, policy, ids, 61);
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_LE(RelativeDifference(logits[i], expected[60 + i]), tolerance)
          << policy << ", step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, DecoderAgainstPlain, ::testing::ValuesIn(kModels),
                         [](const auto& test) { return std::string(test.param.name); });

const TinyModel kFiles[] = {
    {"F16", kModels[0].config, {.fits_f16 = true, .is_f16 = true}},
    {"Shards", kModels[0].config, {.shards = 3}},
    {"HeadForEmbedding", kModels[1].config, {.head_is_embedding = true}},
};

class DecoderFiles : public DecoderAgainstPlain {};

TEST_P(DecoderFiles, GiveTheLogitsOfTheSameWeightsInOnePlainFile) {
  const TinyModel& model = GetParam();
  WriteTinyModel(folder_ / "plain", model.config, kSeed, {.fits_f16 = model.files.fits_f16});
  const PlainLlama plain(folder_ / "plain");
  const auto ids = RandomIds(40, plain.config().vocab_size, 9);
  ExpectRows("full", ids, 30, plain.Forward(ids));
}

INSTANTIATE_TEST_SUITE_P(Tiny, DecoderFiles, ::testing::ValuesIn(kFiles),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ziggurat::testing

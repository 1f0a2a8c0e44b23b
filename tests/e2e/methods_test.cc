// Every method on the real daemon in f32: with limits that compress nothing it gives the tokens of
// `full`, and until it begins to act too.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/pod_groups_file.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kNewTokens = 30;

Generation Ask(Daemon& daemon, const std::vector<int32_t>& prompt, const std::string& policy,
               int new_tokens = kNewTokens) {
  v1::GenerateRequest request = IdRequest(prompt, new_tokens, AtEos::kGoOn);
  request.set_compression(policy);
  return Generate(daemon, request);
}

std::vector<std::string> DaemonFlags(const PodGroupsFiles& groups) {
  std::vector<std::string> flags = groups.Flags();
  flags.push_back("--check-integrity");
  return flags;
}

/// Policies that keep all of `tokens` tokens as they are, each on its own path through the engine.
std::vector<std::string> PoliciesThatKeepAll(int tokens) {
  const auto with = [tokens](const char* before, const char* after) {
    return absl::StrCat(before, tokens, after);
  };
  return {
      with("streaming(sinks=4,recent=", ")"),
      with("streaming(sinks=0,recent=", ")"),
      "streaming(sinks=4000,recent=1)",
      with("snapkv(budget=", ",window=1)"),
      "snapkv(budget=4096)",
      "pyramidkv(budget=4096)",
      "pyramidkv(budget=4096,shape=geometric)",
      "pyramidkv(budget=4096,shape=entropy)",
      "pyramidkv(budget=4096,shape=gini)",
      "windowkv(budget=65536)",
      "windowkv(budget=65536,task=aggregation,group=3)",
      with("h2o(heavy=", ",recent=1)"),
      with("h2o(heavy=1,recent=", ")"),
      "simlayerkv(threshold=1)",
      with("simlayerkv(threshold=0,recent=", ")"),
      "simlayerkv(threshold=1,sinks=1,recent=3)",
      "simlayerkv(threshold=1,sinks=1,recent=3,decide=decode)",
      with("simlayerkv(threshold=0,decide=decode,recent=", ")"),
      "simlayerkv(threshold=1,sinks=1,recent=3)+snapkv(budget=4096)",
      "minicache(retain=1)",
      "minicache(start=0,retain=1,tail=7)",
      "minicache(start=1,retain=1,retain_by=threshold,tail=500)",
      "squeeze(budget=40960,p=0.5)",
      "pod(groups=single,sinks=2,recent=5)",
      with("pod(groups=fours,recent=", ",sinks=0)"),
      with("pod(groups=heads,recent=1,sinks=", ")"),
      with("pod(groups=heads,skip=0,recent=", ",sinks=4)"),
      "pod(groups=single,sinks=2,recent=5)+snapkv(budget=4096)",
      with("pod(groups=fours,recent=", ",sinks=0)+snapkv(budget=4096)"),
  };
}

TEST(Methods, WithLimitsThatCompressNothingGiveTheTokensOfFull) {
  const PodGroupsFiles groups;
  START_DAEMON(daemon, {.flags = DaemonFlags(groups)});
  const PromptSource prompts(daemon);
  std::mt19937 random(11);
  int compared = 0;
  for (const int length : {1, 2, 7, 33, 256, 1201}) {
    const std::vector<int32_t> prompt = prompts.Make(length, random);
    const Generation full = Ask(daemon, prompt, "full");
    ASSERT_TRUE(full.ok()) << full.Describe();
    ASSERT_EQ(full.token_ids.size(), static_cast<size_t>(kNewTokens));
    for (const std::string& policy : PoliciesThatKeepAll(length + kNewTokens)) {
      SCOPED_TRACE(absl::StrCat(policy, ", ", length, " prompt tokens"));
      const Generation generation = Ask(daemon, prompt, policy);
      ASSERT_TRUE(generation.ok()) << generation.Describe();
      EXPECT_EQ(generation.token_ids, full.token_ids);
      for (const v1::LayerCacheReport& layer : generation.result->cache().layers()) {
        EXPECT_EQ(layer.evicted_tokens(), 0u);
        EXPECT_EQ(layer.tokens(), static_cast<uint64_t>(length + kNewTokens - 1));
        EXPECT_EQ(layer.quantized_tokens(), 0u);
        EXPECT_EQ(layer.merged_tokens(), 0u);
        EXPECT_EQ(layer.distant_tokens(), 0u);
      }
      ++compared;
    }
  }
  std::printf("%d generations equal those of full\n", compared);
  EXPECT_EMPTY_CACHE(daemon);
}

/// A method whose first `room` slots behind the prompt change nothing.
struct LateMethod {
  const char* name;
  std::string (*policy)(int slots);  ///< that holds so many tokens and no more
};

const LateMethod kLateMethods[] = {
    {"streaming",
     [](int slots) { return absl::StrCat("streaming(sinks=4,recent=", slots - 4, ")"); }},
    {"streaming, coded",
     [](int slots) { return absl::StrCat("streaming(sinks=4,recent=", slots - 4, ")+int8"); }},
    {"h2o", [](int slots) { return absl::StrCat("h2o(heavy=", slots - 21, ",recent=20)"); }},
    {"h2o, most of it recent",
     [](int slots) { return absl::StrCat("h2o(heavy=20,recent=", slots - 21, ")"); }},
    {"pod",
     [](int slots) { return absl::StrCat("pod(groups=fours,sinks=4,recent=", slots - 4, ")"); }},
    {"pod, by heads",
     [](int slots) { return absl::StrCat("pod(groups=heads,sinks=40,recent=", slots - 40, ")"); }},
};

TEST(Methods, UntilTheyActTheyGiveTheTokensOfFull) {
  const PodGroupsFiles groups;
  START_DAEMON(daemon, {.flags = DaemonFlags(groups)});
  const PromptSource prompts(daemon);
  std::mt19937 random(12);
  for (const int length : {60, 333}) {
    const std::vector<int32_t> prompt = prompts.Make(length, random);
    for (const LateMethod& method : kLateMethods) {
      for (const int room : {0, 1, 8, 17}) {
        const std::string policy = method.policy(length + room);
        SCOPED_TRACE(absl::StrCat(policy, ", ", length, " prompt tokens"));
        const bool is_coded = policy.find("int8") != std::string::npos;
        const Generation yardstick = Ask(daemon, prompt, is_coded ? "int8" : "full");
        const Generation generation = Ask(daemon, prompt, policy);
        ASSERT_TRUE(yardstick.ok()) << yardstick.Describe();
        ASSERT_TRUE(generation.ok()) << generation.Describe();
        // The first token is the prompt's; then every token takes a slot before it attends.
        const auto same = static_cast<ptrdiff_t>(room + 1);
        EXPECT_TRUE(std::equal(yardstick.token_ids.begin(), yardstick.token_ids.begin() + same,
                               generation.token_ids.begin()))
            << testing::PrintToString(yardstick.token_ids) << "\n"
            << testing::PrintToString(generation.token_ids);
        EXPECT_EQ(generation.token_ids.size(), static_cast<size_t>(kNewTokens));
      }
    }
  }
}

TEST(Methods, GiveTheSameAloneAndAmongTheOthers) {
  const PodGroupsFiles groups;
  START_DAEMON(daemon, {.flags = DaemonFlags(groups)});
  const PromptSource prompts(daemon);
  std::mt19937 random(13);
  const std::vector<std::string> policies = {
      "full",
      "streaming(sinks=4,recent=60)",
      "snapkv(budget=64)",
      "pyramidkv(budget=64,shape=gini)",
      "windowkv(budget=64)",
      "h2o(heavy=30,recent=30)",
      "squeeze(budget=64,p=0.5)",
      "simlayerkv(threshold=0.6,sinks=4,recent=60)",
      "simlayerkv(threshold=0.6,sinks=4,recent=60,decide=decode)",
      "minicache(retain=0.1,tail=8)",
      "pod(groups=heads,sinks=4,recent=40)",
      "kivi(bits=4,group=32,residual=32)",
      "int8",
      "fp8",
      "simlayerkv(threshold=0.6,sinks=4,recent=60)+kivi(bits=4)",
      "pod(groups=fours,sinks=4,recent=40)+snapkv(budget=100)+int8",
      "pod(groups=heads,sinks=4,recent=40)+kivi(bits=4,group=16,residual=8)",
      "minicache(retain=0.1,tail=8)+int8",
      "minicache(retain=0.1,tail=8)+kivi(bits=4)"};
  std::vector<std::vector<int32_t>> prompt_of;
  std::vector<std::vector<int32_t>> alone;
  for (const std::string& policy : policies) {
    prompt_of.push_back(prompts.Make(120 + static_cast<int>(random() % 300), random));
    const Generation generation = Ask(daemon, prompt_of.back(), policy);
    ASSERT_TRUE(generation.ok()) << policy << ": " << generation.Describe();
    alone.push_back(generation.token_ids);
  }
  std::vector<Generation> together(policies.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < policies.size(); ++i) {
    clients.emplace_back([&, i] { together[i] = Ask(daemon, prompt_of[i], policies[i]); });
  }
  for (std::thread& client : clients) client.join();
  // A near tie may fall the other way in another batch; that is rare.
  int different = 0;
  for (size_t i = 0; i < policies.size(); ++i) {
    ASSERT_TRUE(together[i].ok()) << policies[i] << ": " << together[i].Describe();
    if (together[i].token_ids == alone[i]) continue;
    ++different;
    std::printf("%s differs\n", policies[i].c_str());
  }
  EXPECT_LE(different, ComputesOnGpu() ? 3 : 1);
  EXPECT_EMPTY_CACHE(daemon);
}

}  // namespace
}  // namespace ziggurat::e2e

// Attention through the block tables, for every policy, against a plain computation over exactly
// the tokens that the policy's definition keeps: after the prompt and after every generated token.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "compression/pod_groups.h"
#include "tests/scheduler/cache_lab.h"

namespace ziggurat {
namespace {

PolicyResources PodResources() {
  PolicyResources resources;
  const auto add = [&](const char* name, std::vector<int> lowest) {
    auto groups = std::make_shared<PodGroups>();
    groups->name = name;
    groups->num_layers = 6;
    groups->num_kv_heads = 2;
    groups->lowest = std::move(lowest);
    resources.pod_groups.push_back(std::move(groups));
  };
  add("same", {0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 5, 5});
  add("mixed", {0, 0, 0, 1, 2, 1, 2, 1, 4, 4, 4, 5});
  add("alone", {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5});
  return resources;
}

LabOptions Options(const std::string& policy, int prompt, int generated, uint64_t seed) {
  LabOptions options;
  options.policy = policy;
  options.resources = PodResources();
  options.num_layers = 6;
  options.prompt_tokens = prompt;
  options.new_tokens = generated + 1;
  options.seed = seed;
  return options;
}

class StoreAttention : public testing::TestWithParam<const char*> {};

TEST_P(StoreAttention, EqualsPlainAttentionOverTheTokensKept) {
  for (const int prompt : {1, 37, 150}) {
    for (const bool cpu : {true, false}) {
      if (!cpu && prompt > 37) continue;  // the twin is slow
      LabOptions options = Options(GetParam(), prompt, 90, prompt);
      options.cpu = cpu;
      CacheLab lab(options);
      absl::Status status = lab.Prefill();
      ASSERT_TRUE(status.ok()) << status;
      for (int step = 0; step < 90; ++step) {
        SCOPED_TRACE(testing::Message() << GetParam() << ", prompt " << prompt << ", step " << step
                                        << (cpu ? ", cpu" : ", reference"));
        status = lab.Step();
        ASSERT_TRUE(status.ok()) << status;
        status = lab.CheckIntegrity();
        ASSERT_TRUE(status.ok()) << status;
        // Decisions of the first token are taken after its attention.
        if ((step % 17 != 1 && step < 87) || lab.tokens() == prompt + 1) continue;
        std::string what;
        const double difference = lab.CompareStep(&what);
        ASSERT_EQ(what, "");
        ASSERT_LE(difference, 1e-5);
      }
      lab.Release();
      EXPECT_EQ(lab.pool().used_blocks(), 0u);
    }
  }
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) {
  std::string name;
  for (const char* c = info.param; *c != '\0'; ++c) name += std::isalnum(*c) ? *c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Policies, StoreAttention,
    testing::Values("full", "streaming(sinks=4,recent=20)", "snapkv(budget=24,window=8)",
                    "pyramidkv(budget=24,window=8)", "pyramidkv(budget=24,window=8,shape=entropy)",
                    "pyramidkv(budget=24,window=8,shape=gini)",
                    "pyramidkv(budget=24,shape=geometric)", "h2o(heavy=10,recent=12)",
                    "simlayerkv(threshold=0.3,sinks=4,recent=20)",
                    "simlayerkv(threshold=0.3,sinks=4,recent=20)+snapkv(budget=30,window=8)",
                    "simlayerkv(threshold=0.5,sinks=4,recent=20,decide=decode)",
                    "squeeze(budget=40,p=0.4)",
                    "windowkv(budget=40,group=2,review=8,observe=16,task=localization)",
                    "minicache(start=0)", "minicache(start=1,tail=7,retain=0.2)",
                    "pod(groups=same,sinks=3,recent=15)", "pod(groups=mixed,sinks=3,recent=15)",
                    "pod(groups=mixed,sinks=0,recent=1)", "pod(groups=alone,sinks=3,recent=15)",
                    "pod(groups=mixed,sinks=3,recent=15)+snapkv(budget=40,window=8)",
                    "pod(groups=same,sinks=3,recent=15)+pyramidkv(budget=40,window=8)"),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Quantized, StoreAttention,
    testing::Values("kivi(group=8,residual=8)", "kivi(group=32,residual=0)",
                    "kivi(bits=2,group=16,residual=3)", "int8", "fp8",
                    "snapkv(budget=60,window=8)+kivi(group=8,residual=4)",
                    "streaming(sinks=4,recent=29)+kivi(group=8,residual=4)",
                    "streaming(sinks=4,recent=6)+kivi(group=8,residual=8)",
                    "streaming(sinks=4,recent=20)+int8", "h2o(heavy=10,recent=12)+fp8",
                    "simlayerkv(threshold=0.3,sinks=4,recent=40)+kivi(group=8,residual=4)",
                    "simlayerkv(threshold=0.3,sinks=4,recent=20,decide=decode)+kivi(group=8)",
                    "simlayerkv(threshold=0.3,sinks=4,recent=20)+snapkv(budget=50,window=8)+int8",
                    "squeeze(budget=40,p=0.4)+kivi(group=8,residual=4)",
                    "minicache(start=1,tail=9,retain=0.2)+kivi(group=8,residual=4)",
                    "minicache(start=0,tail=9)+int8", "pod(groups=mixed,sinks=3,recent=15)+int8",
                    "pod(groups=mixed,sinks=3,recent=15)+snapkv(budget=40,window=8)+fp8",
                    "pod(groups=same,sinks=3,recent=29)+kivi(group=8,residual=4)",
                    "pod(groups=mixed,sinks=3,recent=29)+kivi(group=8,residual=4)",
                    "pod(groups=mixed,sinks=0,recent=1)+kivi(group=4,residual=0)",
                    "pod(groups=same,sinks=40,recent=7)+kivi(bits=2,group=16,residual=0)",
                    "pod(groups=mixed,sinks=3,recent=15)+kivi(group=8,residual=32)",
                    "pod(groups=alone,sinks=3,recent=15)+kivi(group=8,residual=4)",
                    "pod(groups=mixed,sinks=3,recent=60)+snapkv(budget=40,window=8)+"
                    "kivi(group=8,residual=4)",
                    "pod(groups=same,sinks=5,recent=15)+snapkv(budget=70,window=2)+"
                    "kivi(bits=2,group=8,residual=13)",
                    "pod(groups=same,sinks=3,recent=33)+pyramidkv(budget=60,window=8)+"
                    "kivi(group=16,residual=0)"),
    NameOf);

TEST(StoreAttention, SkippedDistantPartsAreCountedAndLeftOut) {
  CacheLab never(Options("pod(groups=same,sinks=3,recent=15,skip=off)", 100, 20, 3));
  CacheLab always(Options("pod(groups=same,sinks=3,recent=15,skip=0)", 100, 20, 3));
  for (CacheLab* lab : {&never, &always}) {
    ASSERT_TRUE(lab->Prefill().ok());
    for (int step = 0; step < 20; ++step) ASSERT_TRUE(lab->Step().ok());
  }
  EXPECT_EQ(never.counts().skipped, 0u);
  EXPECT_GT(never.counts().attended, 0u);
  EXPECT_EQ(always.counts().attended, 0u);
  EXPECT_EQ(always.counts().skipped, never.counts().attended);
}

}  // namespace
}  // namespace ziggurat

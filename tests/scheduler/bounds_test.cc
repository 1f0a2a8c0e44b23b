// What is reserved for a sequence: enough for all that its layers may come to, and no more than
// they can.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compression/registry.h"
#include "scheduler/block_plan.h"
#include "scheduler/store/layer_store.h"
#include "tests/scheduler/cache_lab.h"

namespace ziggurat {
namespace {

constexpr int kLayers = 4;
constexpr int kHeads = 2;
constexpr int kHeadDim = 32;
const CacheGeometry kGeometry{kLayers, kHeads, kHeadDim,
                              CacheGeometry::DefaultBlockBytes(kHeads, kHeadDim)};

LabOptions Options(const std::string& policy, int prompt, int new_tokens) {
  return SmallLab(policy, {0, 0, 0, 0, 0, 0, 3, 3}, prompt, new_tokens);
}

size_t PlannedBlocks(const std::string& policy, int prompt, int new_tokens) {
  const LabOptions options = Options(policy, prompt, new_tokens);
  ModelShape shape;
  shape.num_layers = kLayers;
  shape.num_q_heads = options.num_q_heads;
  shape.num_kv_heads = kHeads;
  shape.head_dim = kHeadDim;
  const auto parsed = ParsePolicy(policy, options.resources);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return 0;
  const auto plan = PlanBlocks(**parsed, shape, kGeometry, {prompt, new_tokens});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->total_blocks : 0;
}

// A token that leaves the near window leaves its slot to a new one, so the parts only grow.
TEST(Bounds, NearAndDistantTokensAreTogetherAllThatAreKept) {
  for (const char* stored : {"", "+fp8"}) {
    for (const char* selects : {"", "+snapkv(budget=40,window=8)", "+snapkv(budget=90,window=8)"}) {
      for (const auto& [sinks, recent] : {std::pair(3, 15), {0, 1}, {30, 100}, {4, 400}}) {
        for (const int prompt : {1, 20, 150}) {
          const std::string policy =
              absl::StrCat("pod(groups=g,sinks=", sinks, ",recent=", recent, ")", selects, stored);
          SCOPED_TRACE(absl::StrCat(policy, ", prompt ", prompt));
          CacheLab lab(Options(policy, prompt, 121));
          ASSERT_TRUE(lab.Prefill().ok());
          const size_t bound = lab.pool().used_blocks() + lab.reserved_blocks();
          EXPECT_LE(bound, lab.planned_blocks());
          for (int step = 0; step < 120; ++step) ASSERT_TRUE(lab.Step().ok());
          EXPECT_EQ(lab.pool().used_blocks(), bound);
          EXPECT_EQ(lab.reserved_blocks(), 0u);
        }
      }
    }
  }
  // Every token is kept once: with its keys and values at most, and a tail for each of two parts in
  // the planes of each head.
  const std::string selected = "snapkv(budget=1024)";
  EXPECT_LE(PlannedBlocks(absl::StrCat("pod(groups=g)+", selected), 8192, 512),
            PlannedBlocks(selected, 8192, 512) + size_t{kLayers * kHeads * 2 * 2});
}

TEST(Bounds, WhateverOfThePromptIsMergedFitsIntoItsBound) {
  for (const char* stored :
       {"", "+int8", "+kivi(bits=4,group=32,residual=32)", "+kivi(bits=2,group=8,residual=0)"}) {
    for (const char* parameters : {"", ",tail=9", ",tail=64,retain=0.5"}) {
      const std::string text =
          absl::StrCat("minicache(start=0,retain_by=threshold", parameters, ")", stored);
      const auto policy = *ParsePolicy(text, {});
      for (const int prompt : {1, 7, 33, 130, 401}) {
        for (const int appended : {0, 5, 200}) {
          SCOPED_TRACE(absl::StrCat(text, ", prompt ", prompt, ", appended ", appended));
          const CachePlan plan =
              policy->Plan({kLayers, kHeads, kHeads, kHeadDim}, {prompt, appended + 1});
          const StoreContext context{&plan, &kGeometry, ElementType::kBf16, prompt, appended};
          for (const MergeRole role : {MergeRole::kLower, MergeRole::kUpper}) {
            size_t most = 0;
            for (int retained = 0; retained <= prompt; ++retained) {
              most = std::max(most, MaxMergedBlocks(context, role, retained));
            }
            const size_t bound = MaxMergedBlocks(context, role);
            EXPECT_GE(bound, most);
            // Some blocks more, for parts that end in blocks that are not full.
            EXPECT_LE(bound, most + 12);
          }
        }
      }
    }
  }
}

TEST(Bounds, ARingOfHardlyMoreTokensThanItsSinksTakesWhatTheyTakeByThemselves) {
  // Sinks stay as they are where others become codes, and so does what is no group yet.
  for (const auto& [stored, alone] :
       {std::pair("", "full"), {"+int8", "int8"}, {"+kivi(bits=4,group=8,residual=8)", "full"}}) {
    const std::string ring = absl::StrCat("streaming(sinks=64,recent=32)", stored);
    for (const int tokens : {1, 20, 63, 64, 70}) {
      SCOPED_TRACE(absl::StrCat(ring, ", ", tokens, " tokens"));
      EXPECT_EQ(PlannedBlocks(ring, tokens, 1), PlannedBlocks(alone, tokens, 1));
      EXPECT_EQ(PlannedBlocks(ring, 1, tokens), PlannedBlocks(alone, 1, tokens));
    }
  }
}

// A ring does not grow, and what was selected does: a layer is one or the other.
TEST(Bounds, ALayerThatMayBeLazyTakesTheMoreOfItsRingAndItsSelection) {
  for (const char* selects :
       {"snapkv(budget=100,window=16)", "windowkv(budget=100,task=localization)"}) {
    const std::string either = absl::StrCat("simlayerkv(sinks=4,recent=200)+", selects);
    const std::string lazy = "streaming(sinks=4,recent=200)";
    for (const int new_tokens : {2, 100, 101, 105, 110, 400}) {
      SCOPED_TRACE(absl::StrCat(either, ", ", new_tokens, " new tokens"));
      EXPECT_EQ(
          PlannedBlocks(either, 640, new_tokens),
          std::max(PlannedBlocks(selects, 640, new_tokens), PlannedBlocks(lazy, 640, new_tokens)));
    }
  }
}

TEST(Bounds, ALateDecisionCopiesOneLayerAtATime) {
  for (const char* decides : {"squeeze(budget=249,p=0.5)", "squeeze(budget=40,p=0.4)",
                              "simlayerkv(threshold=0.3,sinks=4,recent=20,decide=decode)"}) {
    for (const char* stored :
         {"int8", "kivi(bits=2,group=128,residual=32)", "kivi(bits=4,group=8,residual=100)"}) {
      for (const int prompt : {1, 20, 129, 290}) {
        for (const int new_tokens : {1, 2, 150}) {
          const std::string policy = absl::StrCat(decides, "+", stored);
          SCOPED_TRACE(absl::StrCat(policy, ", prompt ", prompt, ", ", new_tokens, " new tokens"));
          LabOptions options = Options(policy, prompt, new_tokens);
          options.head_dim = 128;
          CacheLab lab(options);
          ASSERT_TRUE(lab.Prefill().ok());
          for (int step = 0; step < new_tokens - 1; ++step) {
            const absl::Status status = lab.Step();
            ASSERT_TRUE(status.ok()) << status;
            ASSERT_TRUE(lab.CheckIntegrity().ok());
          }
        }
      }
    }
  }
  const size_t full = PlannedBlocks("full", 8192, 1);
  EXPECT_GE(PlannedBlocks("squeeze(budget=1024)+int8", 8192, 512), full * 9 / 8);
  EXPECT_LE(PlannedBlocks("squeeze(budget=1024)+int8", 8192, 512), full * 19 / 16);
}

TEST(Bounds, ALateDecisionIsPlannedByThePromptAndByWhatItComesTo) {
  const auto planned = [](const std::string& text, int prompt, int appended) {
    const CachePlan plan =
        (*ParsePolicy(text))->Plan({kLayers, kHeads, kHeads, kHeadDim}, {prompt, appended + 1});
    const StoreContext context{&plan, &kGeometry, ElementType::kBf16, prompt, appended};
    const std::vector<size_t> blocks = MaxLayerBlocks(context);
    return std::accumulate(blocks.begin(), blocks.end(), size_t{0});
  };
  const auto full = [&](int prompt, int appended) { return planned("full", prompt, appended); };
  // Generated tokens come after the decision. A tail for each layer: budgets differ.
  const std::string squeeze = "squeeze(budget=64,p=0.5)";
  EXPECT_EQ(planned(squeeze, 640, 2000), full(640, 0));
  EXPECT_EQ(planned(squeeze, 16, 2000), full(64, 0) + kLayers);
  for (const char* shape : {"entropy", "gini"}) {
    const std::string pyramid = absl::StrCat("pyramidkv(budget=64,shape=", shape, ")");
    EXPECT_EQ(planned(pyramid, 640, 2), full(640, 0));
    EXPECT_EQ(planned(pyramid, 640, 2000), full(64, 2000) + kLayers);
  }
  // Whether any layer is lazy is not known.
  const std::string lazy = "simlayerkv(threshold=0.3,sinks=4,recent=60,decide=decode)";
  EXPECT_EQ(planned(lazy, 640, 2000), full(640, 2000));
  EXPECT_LT(planned(lazy + "+kivi", 640, 4000), full(640, 4000) / 2);
}

}  // namespace
}  // namespace ziggurat

// PoD of codes: groups move as they stand, and the bound that is reserved is what the layers come
// to.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/reference/stored_segment.h"
#include "tests/scheduler/cache_lab.h"

namespace ziggurat {
namespace {

constexpr int kLayers = 4;
constexpr int kHeads = 2;
constexpr int kHeadDim = 32;

LabOptions Options(const std::string& policy, bool alike, int prompt, int new_tokens) {
  return SmallLab(
      policy,
      alike ? std::vector<int>{0, 0, 0, 0, 0, 0, 3, 3} : std::vector<int>{0, 0, 0, 1, 2, 1, 2, 3},
      prompt, new_tokens);
}

/// The values of every coded slot of the layer, decoded; the keys in `keys`, where they are its
/// own.
std::set<std::vector<double>> CodedValues(const CacheLab& lab, int layer,
                                          std::set<std::vector<double>>* keys) {
  std::set<std::vector<double>> values;
  for (const SegmentView& view : lab.cache().layer(layer).view()) {
    if (!IsGrouped(view.encoding)) continue;
    const reference::StoredSegment segment(lab.pool().view(), view, kHeadDim);
    for (int head = 0; head < view.num_kv_heads; ++head) {
      const int g = view.first_kv_head + head;
      for (int slot = 0; slot < view.num_slots; ++slot) {
        values.insert(segment.DecodedVector(reference::Side::kValues, g, slot));
        if (view.use == SegmentUse::kBorrowedKeys) continue;
        keys->insert(segment.DecodedVector(reference::Side::kKeys, g, slot));
      }
    }
  }
  return values;
}

TEST(GroupedDistant, CodesMoveAsTheyStand) {
  for (const char* policy : {"pod(groups=g,sinks=3,recent=29)+kivi(group=8,residual=4)",
                             "pod(groups=g,sinks=3,recent=29)+snapkv(budget=60,window=8)+"
                             "kivi(bits=2,group=8,residual=4)"}) {
    CacheLab lab(Options(policy, true, 91, 80));
    ASSERT_TRUE(lab.Prefill().ok());
    std::vector<std::set<std::vector<double>>> values(kLayers), keys(kLayers);
    for (int step = 0; step < 70; ++step) {
      for (int layer = 0; layer < kLayers; ++layer) {
        std::set<std::vector<double>> keys_now;
        const auto values_now = CodedValues(lab, layer, &keys_now);
        for (const auto& row : values[layer]) {
          ASSERT_TRUE(values_now.contains(row)) << policy << ", layer " << layer << ", " << step;
        }
        // Layers 0 and 3 keep the keys of distant tokens.
        for (const auto& row : keys[layer]) {
          ASSERT_TRUE(layer == 1 || layer == 2 || keys_now.contains(row))
              << policy << ", layer " << layer << ", " << step;
        }
        values[layer] = values_now;
        keys[layer] = keys_now;
      }
      ASSERT_TRUE(lab.Step().ok());
    }
    EXPECT_GE(values[0].size(), 2u * 64);
  }
}

/// Sums over layers and segments the blocks of the most slots that a segment ever had.
class Peaks {
 public:
  void See(const CacheLab& lab) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerView view = lab.cache().layer(layer).view();
      for (size_t s = 0; s < view.size(); ++s) {
        Part& part = parts_[{layer, s}];
        part.view = view[s];
        part.slots = std::max(part.slots, view[s].num_slots);
      }
    }
  }
  /// `more`: tokens beside them in every segment of codes that is a near one.
  size_t Blocks(int more) const {
    const CacheGeometry geometry{kLayers, kHeads, kHeadDim,
                                 CacheGeometry::DefaultBlockBytes(kHeads, kHeadDim)};
    size_t blocks = 0;
    for (const auto& [at, part] : parts_) {
      CacheFormat format{part.view.encoding, static_cast<uint16_t>(part.view.group)};
      format.values_only = part.view.use == SegmentUse::kBorrowedKeys;
      const bool near_codes = part.view.use == SegmentUse::kOwn && format.group > 0;
      blocks +=
          geometry.BlocksFor(format, part.view.num_kv_heads, part.slots + (near_codes ? more : 0));
    }
    return blocks;
  }

 private:
  struct Part {
    SegmentView view;
    int slots = 0;
  };
  std::map<std::pair<int, size_t>, Part> parts_;
};

TEST(GroupedDistant, HoldsWhatItMustWithinABoundThatItReaches) {
  std::mt19937 random(5);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
  };
  for (int round = 0; round < 40; ++round) {
    const int group = 1 << between(1, 5), residual = between(0, 40);
    const int sinks = between(0, 6), recent = between(1, 70);
    const bool selects = round % 3 == 0;
    const std::string policy = absl::StrCat(
        "pod(groups=g,sinks=", sinks, ",recent=", recent, ")",
        selects ? absl::StrCat("+snapkv(budget=", 10 + between(1, 60), ",window=10)") : "",
        "+kivi(bits=", round % 2 == 0 ? 4 : 2, ",group=", group, ",residual=", residual, ")");
    const int prompt = between(1, 160);
    // Long enough for every part to have been at its most.
    const int steps = recent + 2 * group + residual + sinks + between(0, 30);
    SCOPED_TRACE(absl::StrCat(policy, ", prompt ", prompt, ", ", steps, " steps"));
    CacheLab lab(Options(policy, round % 4 < 2, prompt, steps + 1));
    ASSERT_TRUE(lab.Prefill().ok());
    ASSERT_TRUE(lab.CheckIntegrity().ok());
    const size_t bound = lab.pool().used_blocks() + lab.reserved_blocks();
    ASSERT_LE(bound, lab.planned_blocks());
    Peaks peaks;
    peaks.See(lab);
    for (int step = 0; step < steps; ++step) {
      absl::Status status = lab.Step();
      ASSERT_TRUE(status.ok()) << status;
      status = lab.CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status;
      peaks.See(lab);
      if (step % 23 != 22 && step != steps - 1) continue;
      std::string what;
      EXPECT_LE(lab.CompareStep(&what), 1e-5);
      ASSERT_EQ(what, "");
    }
    EXPECT_GE(bound, peaks.Blocks(0));
    EXPECT_LE(bound, peaks.Blocks(group));
    EXPECT_TRUE(selects || bound == lab.planned_blocks()) << "nothing was to be measured";
  }
}

// What is kept of the prompt is then near like everything behind it, where the plan might count on
// sinks that never become codes.
TEST(GroupedDistant, APlanHasRoomForASelectionWithoutAnySink) {
  for (const int steps : {121, 129, 130}) {  // with the 7 of the prompt a block of codes, and more
    CacheLab lab(
        Options("pod(groups=g,sinks=8,recent=200)+snapkv(budget=7,window=2)+"
                "kivi(bits=4,group=8,residual=0)",
                true, 200, steps + 1));
    const absl::Status status = lab.Prefill();
    ASSERT_TRUE(status.ok()) << status;
    for (int step = 0; step < steps; ++step) ASSERT_TRUE(lab.Step().ok());
    EXPECT_LE(lab.pool().used_blocks(), lab.planned_blocks());
  }
}

TEST(GroupedDistant, APlanHasRoomForASelectionOfDistantTokensAlone) {
  // Some 270 of 300 tokens are distant: three blocks of codes, where without the recent 100 of the
  // prompt there would be two.
  CacheLab lab(
      Options("pod(groups=g,sinks=8,recent=100)+snapkv(budget=300,window=2)+"
              "kivi(bits=4,group=8,residual=0)",
              true, 1000, 3));
  const absl::Status status = lab.Prefill();
  ASSERT_TRUE(status.ok()) << status;
  for (int step = 0; step < 2; ++step) ASSERT_TRUE(lab.Step().ok());
  EXPECT_LE(lab.pool().used_blocks(), lab.planned_blocks());
}

}  // namespace
}  // namespace ziggurat

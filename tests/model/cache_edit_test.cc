// Edits of caches between steps: carried out in order, and refused where they do not fit.
#include "model/cache_ops/cache_edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"
#include "tests/model/prompt_lab.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kHeads = 2, kDim = 16;

class CacheEdits : public ::testing::TestWithParam<std::string> {
 protected:
  CacheEdits()
      : geometry_{2, kHeads, kDim, CacheGeometry::DefaultBlockBytes(kHeads, kDim)},
        pool_(*BlockPool::Create(200, geometry_.block_bytes)),
        cache_(pool_.get(), &geometry_),
        backend_(MakeCacheOpsBackend(GetParam())) {}

  /// A segment of random tokens, seeded by layer and index; of `slots` empty ones where coded.
  void Add(int layer, int slots, CacheFormat format = CacheFormat::kF32) {
    LayerBlockTable& table = cache_.layer(layer);
    const int index = table.AddSegment({.format = format});
    EXPECT_TRUE(table.Extend(index, slots).ok());
    if (format == CacheFormat::kF32) {
      std::mt19937 random(static_cast<uint32_t>(17 * layer + index));
      std::normal_distribution<float> normal;
      std::vector<float> k(static_cast<size_t>(slots) * kHeads * kDim), v(k.size());
      for (float& value : k) value = normal(random);
      for (float& value : v) value = normal(random);
      backend_->WriteTokens(shape_, {ElementType::kF32, k.data(), v.data()},
                            TokenChoice::From(0, slots), pool_->view(), table.view()[index], 0);
    }
    indices_.push_back({layer, index});
  }
  /// An empty one of layer 0, of one head.
  void AddOfHead(int head, int slots) {
    LayerBlockTable& table = cache_.layer(0);
    const int index =
        table.AddSegment({.format = CacheFormat::kF32, .first_kv_head = head, .num_kv_heads = 1});
    EXPECT_TRUE(table.Extend(index, slots).ok());
    indices_.push_back({0, index});
  }
  /// The i-th segment that was added; views move when others are added.
  const SegmentView* segment(size_t i) {
    return &cache_.layer(indices_[i].first).view()[indices_[i].second];
  }
  /// Keys, and behind them values: [slots, heads, dim] each.
  std::vector<float> Read(size_t i) {
    const SegmentView* view = segment(i);
    const size_t row = static_cast<size_t>(view->num_slots) * kHeads * kDim;
    std::vector<float> all(2 * row);
    backend_->ReadTokens(shape_, pool_->view(), *view, 0, view->num_slots, all.data(),
                         all.data() + row);
    return all;
  }
  /// One channel of the keys of a head's slot.
  static float KeyOf(const std::vector<float>& read, int head, int slot, int channel = 0) {
    return read[(static_cast<size_t>(slot) * kHeads + head) * kDim + channel];
  }
  /// The bytes of every block of the two layers.
  std::vector<absl::Span<std::byte>> Blocks() {
    std::vector<BlockId> ids;
    cache_.AppendReferences(&ids);
    std::vector<absl::Span<std::byte>> blocks;
    for (const BlockId id : ids) {
      blocks.push_back(absl::MakeSpan(pool_->view().Block(id), geometry_.block_bytes));
    }
    return blocks;
  }
  std::vector<std::vector<std::byte>> Held() {
    std::vector<std::vector<std::byte>> held;
    for (const auto block : Blocks()) held.emplace_back(block.begin(), block.end());
    return held;
  }
  absl::Status Run(const std::vector<CacheEdit>& edits) {
    return RunCacheEdits(*backend_, shape_, pool_->view(), edits);
  }

  AttentionShape shape_{4, kHeads, kDim, 0.25f};
  CacheGeometry geometry_;
  std::unique_ptr<BlockPool> pool_;
  SequenceCache cache_;
  std::unique_ptr<AttentionBackend> backend_;
  std::vector<std::pair<int, int>> indices_;  ///< layer and segment
};

TEST_P(CacheEdits, CopiesNeighboursOrTheListedSlotsOfEachHead) {
  Add(0, 40);
  Add(0, 30);
  const std::vector<float> from = Read(0);
  ASSERT_TRUE(Run({CopyEdit{segment(0), 7, {}, 12, segment(1), 3},
                   CopyEdit{segment(0), 0, {39, 5, 0, 1, 38, 2}, 3, segment(1), 20}})
                  .ok());
  const std::vector<float> to = Read(1);
  for (int i = 0; i < 12; ++i) {
    for (int head = 0; head < kHeads; ++head)
      EXPECT_EQ(KeyOf(to, head, 3 + i), KeyOf(from, head, 7 + i));
  }
  const int first[] = {39, 5, 0}, second[] = {1, 38, 2};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(KeyOf(to, 0, 20 + i), KeyOf(from, 0, first[i]));
    EXPECT_EQ(KeyOf(to, 1, 20 + i), KeyOf(from, 1, second[i]));
  }
}

TEST_P(CacheEdits, RunInOrderEachOnWhatTheOnesBeforeLeft) {
  Add(0, 20);
  const std::vector<float> before = Read(0);
  // The first 5 go, the others move down; then what is last is copied to the front.
  ASSERT_TRUE(Run({CopyEdit{segment(0), 5, {}, 15, segment(0), 0},
                   CopyEdit{segment(0), 14, {}, 1, segment(0), 0}})
                  .ok());
  const std::vector<float> after = Read(0);
  EXPECT_EQ(KeyOf(after, 0, 1), KeyOf(before, 0, 6));
  EXPECT_EQ(KeyOf(after, 1, 13), KeyOf(before, 1, 18));
  EXPECT_EQ(KeyOf(after, 0, 0), KeyOf(before, 0, 19));
  // A list waits for what neighbours are copied before it, and these for it.
  Add(0, 4);
  Add(0, 4);
  ASSERT_TRUE(Run({CopyEdit{segment(0), 8, {}, 2, segment(1), 0},
                   CopyEdit{segment(1), 0, {1, 0, 0, 1}, 2, segment(2), 0},
                   CopyEdit{segment(2), 1, {}, 1, segment(1), 3}})
                  .ok());
  const std::vector<float> last = Read(1);
  EXPECT_EQ(KeyOf(last, 0, 3), KeyOf(after, 0, 8));
  EXPECT_EQ(KeyOf(last, 1, 3), KeyOf(after, 1, 9));
}

TEST_P(CacheEdits, RefusesCopiesThatDoNotFitAndTouchesNothing) {
  Add(0, 40);
  Add(0, 30);
  const CacheFormat int4{Encoding::kInt4, 8};
  Add(0, 32, int4);
  AddOfHead(0, 30);
  AddOfHead(1, 30);
  const std::vector<float> before = Read(1);
  const auto message = [&](const CopyEdit& edit) { return Run({edit}).ToString(); };
  EXPECT_THAT(message({segment(0), 30, {}, 11, segment(1), 0}),
              HasSubstr("a copy of 11 tokens from slot 30 of 40 to slot 0 of 30"));
  EXPECT_THAT(message({segment(0), -1, {}, 2, segment(1), 0}), HasSubstr("from slot -1 of 40"));
  EXPECT_THAT(message({segment(0), 0, {}, 5, segment(1), 26}), HasSubstr("to slot 26 of 30"));
  EXPECT_THAT(message({segment(0), 0, {}, 5, segment(1), -1}), HasSubstr("to slot -1 of 30"));
  EXPECT_THAT(message({segment(0), 0, {}, -5, segment(1), 0}), HasSubstr("a copy of -5"));
  EXPECT_THAT(message({segment(0), 0, {1, 2, 3}, 2, segment(1), 0}), HasSubstr("from 3 slots"));
  EXPECT_THAT(message({segment(0), 0, {1, 2, 3, 4, 5}, 2, segment(1), 0}),
              HasSubstr("from 5 slots"));
  EXPECT_THAT(message({segment(0), 0, {1, 2, 3, 40}, 2, segment(1), 0}), HasSubstr("from 4 slots"));
  EXPECT_THAT(message({segment(0), 0, {1, -2, 3, 4}, 2, segment(1), 0}), HasSubstr("from 4 slots"));
  for (const auto& [from, to] : {std::pair(0, 3), {3, 0}, {0, 4}, {4, 0}, {3, 4}}) {
    EXPECT_THAT(message({segment(from), 0, {}, 5, segment(to), 0}), HasSubstr("of other heads"))
        << from << " to " << to;
  }
  EXPECT_THAT(message({segment(0), 0, {}, 12, segment(2), 0}), HasSubstr("a copy of 12 tokens"))
      << "groups are written whole";
  EXPECT_THAT(message({segment(0), 0, {}, 8, segment(2), 4}), HasSubstr("to slot 4 of 32"));
  EXPECT_EQ(Read(1), before);
  EXPECT_TRUE(Run({CopyEdit{segment(0), 3, {}, 16, segment(2), 8}}).ok());
}

TEST_P(CacheEdits, WhatCameBeforeAWrongEditIsDone) {
  Add(0, 40);
  Add(0, 30);
  const std::vector<float> from = Read(0);
  EXPECT_EQ(Run({CopyEdit{segment(0), 9, {}, 1, segment(1), 0},
                 CopyEdit{segment(0), 40, {}, 1, segment(1), 1}})
                .code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(KeyOf(Read(1), 0, 0), KeyOf(from, 0, 9));
  EXPECT_TRUE(Run({}).ok());
}

class MergeEdits : public CacheEdits {
 protected:
  static constexpr int kTail = 10, kRetained = 3, kMerged = 7;

  MergeEdits() {
    CacheFormat merged = CacheFormat::kF32;
    merged.merged = true;
    Add(0, 20, merged);
    cache_.layer(1).ShareSegment(cache_.layer(0), 0);
    indices_.push_back({1, 0});
    for (const int layer : {0, 1}) Add(layer, 9);      // 2, 3: retained
    for (const int layer : {0, 1}) Add(layer, kTail);  // 4, 5: tails
  }
  static std::vector<int32_t> LargestAngles(const std::vector<float>& lower,
                                            const std::vector<float>& upper, int head);
  MergeEdit Edit() {
    MergeEdit edit;
    edit.lower_tail = segment(4);
    edit.upper_tail = segment(5);
    edit.count = kTail;
    edit.retained = kRetained;
    edit.t = 1;  // the direction is the upper layer's
    edit.lower_merged = segment(0);
    edit.upper_merged = segment(1);
    edit.first_merged_slot = 11;
    edit.lower_retained = segment(2);
    edit.upper_retained = segment(3);
    edit.first_retained_slot = 5;
    return edit;
  }
};

/// The tokens of a head that stay unmerged.
std::vector<int32_t> MergeEdits::LargestAngles(const std::vector<float>& lower,
                                               const std::vector<float>& upper, int head) {
  std::vector<double> angles;
  for (int t = 0; t < kTail; ++t) {
    double dot = 0, a = 0, b = 0;
    for (int d = 0; d < kDim; ++d) {
      const double x = KeyOf(lower, head, t, d), y = KeyOf(upper, head, t, d);
      dot += x * y;
      a += x * x;
      b += y * y;
    }
    angles.push_back(std::acos(dot / std::sqrt(a * b)));
  }
  return PlainBest(angles, kRetained);
}

TEST_P(MergeEdits, RetainTheTokensOfTheLargestAnglesAndMergeTheOthers) {
  const std::vector<float> lower = Read(4), upper = Read(5);
  const std::vector<float> old_lower = Read(2), old_upper = Read(3);
  ASSERT_TRUE(Run({Edit()}).ok());
  const std::vector<float> kept_lower = Read(2), kept_upper = Read(3);
  for (int head = 0; head < kHeads; ++head) {
    const std::vector<int32_t> retained = LargestAngles(lower, upper, head);
    for (int i = 0; i < kRetained; ++i) {
      EXPECT_EQ(KeyOf(kept_lower, head, 5 + i), KeyOf(lower, head, retained[i]));
      EXPECT_EQ(KeyOf(kept_upper, head, 5 + i), KeyOf(upper, head, retained[i]));
    }
    for (const int slot : {0, 4, 8}) {
      EXPECT_EQ(KeyOf(kept_lower, head, slot), KeyOf(old_lower, head, slot));
      EXPECT_EQ(KeyOf(kept_upper, head, slot), KeyOf(old_upper, head, slot));
    }
  }
}

// Merges of a step go before its copies, but not before one that writes what they read.
TEST_P(MergeEdits, GoInOrderWithCopiesOfTheSameTokens) {
  const std::vector<int32_t> largest = LargestAngles(Read(4), Read(5), 0);
  // From a copy on, a token of both layers is one, and the angle between them 0: a merge behind it
  // retains another.
  const auto alike = [&](int token) {
    return CopyEdit{segment(5), token, {}, 1, segment(4), token};
  };
  // What a merge retained goes elsewhere, and the next one's comes in its place.
  const auto moved = [&](int to) { return CopyEdit{segment(2), 5, {}, 2, segment(2), to}; };
  MergeEdit again = Edit();
  again.first_merged_slot = 0;
  const auto before = Held();
  const std::vector<CacheEdit> edits = {alike(largest[0]), Edit(), moved(0),
                                        alike(largest[1]), again,  moved(2)};
  for (const CacheEdit& edit : edits) ASSERT_TRUE(Run({edit}).ok());
  const auto one_by_one = Held();
  const std::vector<float> kept = Read(2);
  EXPECT_NE(KeyOf(kept, 0, 0), KeyOf(kept, 0, 2)) << "the merges retain different tokens";
  for (size_t i = 0; i < before.size(); ++i) {
    std::copy(before[i].begin(), before[i].end(), Blocks()[i].begin());
  }
  ASSERT_TRUE(Run(edits).ok());
  EXPECT_TRUE(Held() == one_by_one);
}

TEST_P(MergeEdits, LeaveACopyBeforeThemWhatItReads) {
  Add(0, 3);  // 6
  const std::vector<float> before = Read(2);
  ASSERT_TRUE(Run({CopyEdit{segment(2), 5, {}, kRetained, segment(6), 0}, Edit()}).ok());
  for (int slot = 0; slot < kRetained; ++slot) {
    EXPECT_EQ(KeyOf(Read(6), 0, slot), KeyOf(before, 0, 5 + slot));
    EXPECT_NE(KeyOf(Read(2), 0, 5 + slot), KeyOf(before, 0, 5 + slot));
  }
}

TEST_P(MergeEdits, RefuseWhatDoesNotFit) {
  const std::vector<float> before = Read(2);
  const auto message = [&](auto spoil) {
    MergeEdit edit = Edit();
    spoil(edit);
    return Run({edit}).ToString();
  };
  EXPECT_THAT(message([](MergeEdit& e) { e.count = 11; }),
              HasSubstr("a merge of 11 of 10 and 10 tokens"));
  EXPECT_THAT(message([](MergeEdit& e) { e.retained = 11; }), HasSubstr("11 of them retained"));
  EXPECT_THAT(message([](MergeEdit& e) { e.retained = -1; }), HasSubstr("-1 of them retained"));
  EXPECT_THAT(message([](MergeEdit& e) { e.first_merged_slot = 14; }),
              HasSubstr("to slot 14 of 20 merged"));
  EXPECT_THAT(message([](MergeEdit& e) { e.first_retained_slot = 7; }),
              HasSubstr("slot 7 of 9 retained"));
  EXPECT_EQ(Read(2), before);
}

TEST_P(MergeEdits, RefuseASegmentOfOneLayerThatDoesNotFit) {
  for (const int layer : {0, 1}) Add(layer, 7);                         // 6, 7: too short for any
  for (const int layer : {0, 1}) Add(layer, 40);                        // 8, 9: of room for all
  for (const int layer : {0, 1}) Add(layer, 40, {Encoding::kInt4, 8});  // 10, 11
  for (const int layer : {0, 1}) Add(layer, 40, {Encoding::kInt4, 4});  // 12, 13
  for (const int layer : {0, 1}) Add(layer, 40, {Encoding::kInt2, 8});  // 14, 15
  const SegmentView* MergeEdit::*const parts[] = {
      &MergeEdit::lower_tail,   &MergeEdit::upper_tail,     &MergeEdit::lower_merged,
      &MergeEdit::upper_merged, &MergeEdit::lower_retained, &MergeEdit::upper_retained};
  for (size_t i = 0; i < std::size(parts); ++i) {
    MergeEdit edit = Edit();
    edit.*parts[i] = segment(6 + i % 2);
    EXPECT_EQ(Run({edit}).code(), absl::StatusCode::kInternal) << "part " << i;
  }
  const auto retains_in = [&](int lower, int upper, int retained) {
    MergeEdit edit = Edit();
    edit.lower_retained = segment(lower);
    edit.upper_retained = segment(upper);
    edit.first_retained_slot = edit.retained = retained;
    return Run({edit});
  };
  EXPECT_TRUE(retains_in(8, 9, 8).ok());
  EXPECT_TRUE(retains_in(10, 11, 8).ok());
  EXPECT_FALSE(retains_in(10, 11, 4).ok()) << "half a group";
  for (const auto& [lower, upper] : {std::pair(8, 11), {10, 9}, {10, 13}, {12, 11}, {10, 15}}) {
    EXPECT_FALSE(retains_in(lower, upper, 8).ok())
        << "both take the same: " << lower << ", " << upper;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CacheEdits, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Backends, MergeEdits, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace ziggurat::testing

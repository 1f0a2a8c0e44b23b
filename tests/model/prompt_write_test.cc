// Where the tokens that stay get to: ranges of the list in segments, for every way in which a layer
// may say which tokens these are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"
#include "compression/layer_plan.h"
#include "compression/pod_groups.h"
#include "tests/model/prompt_lab.h"

namespace ziggurat::testing {
namespace {

using ::testing::HasSubstr;

/// The blocks of a few layers of the lab's shape.
struct Blocks {
  explicit Blocks(const PromptLabOptions& options)
      : geometry{options.num_layers, options.num_kv_heads, options.head_dim,
                 CacheGeometry::DefaultBlockBytes(options.num_kv_heads, options.head_dim)},
        pool(*BlockPool::Create(400, geometry.block_bytes)),
        cache(pool.get(), &geometry) {}

  /// A new segment of `slots` slots of layer `layer`.
  int Add(int layer, int slots, CacheFormat format = CacheFormat::kF32, int head = 0,
          int heads = 0) {
    const int segment = cache.layer(layer).AddSegment(
        {.format = format, .first_kv_head = head, .num_kv_heads = heads});
    EXPECT_TRUE(cache.layer(layer).Extend(segment, slots).ok());
    return segment;
  }
  LayerView view(int layer) { return cache.layer(layer).view(); }

  CacheGeometry geometry;
  std::unique_ptr<BlockPool> pool;
  SequenceCache cache;
};

/// A number of slot `slot` of the g-th head of a plain f32 segment.
float KeyAt(PoolView pool, const SegmentView& segment, int g, int slot, int channel) {
  const PlaneView& plane = segment.keys;
  const std::byte* area = pool.Block(plane.blocks[slot / plane.slots_per_block]) +
                          static_cast<size_t>(g) * plane.head_stride_bytes + plane.offset_bytes;
  float value = 0;
  std::memcpy(&value, area + 4 * (channel * plane.slots_per_block + slot % plane.slots_per_block),
              4);
  return value;
}
float ValueAt(PoolView pool, const SegmentView& segment, int g, int slot, int channel, int dim) {
  const PlaneView& plane = segment.values;
  const std::byte* area = pool.Block(plane.blocks[slot / plane.slots_per_block]) +
                          static_cast<size_t>(g) * plane.head_stride_bytes + plane.offset_bytes;
  float value = 0;
  std::memcpy(&value, area + 4 * ((slot % plane.slots_per_block) * dim + channel), 4);
  return value;
}
/// A number per slot: norms, scores, or as an integer positions.
template <typename Number>
Number NumberAt(PoolView pool, const PlaneView& plane, int g, int slot) {
  const std::byte* area = pool.Block(plane.blocks[slot / plane.slots_per_block]) +
                          static_cast<size_t>(g) * plane.head_stride_bytes + plane.offset_bytes;
  Number value = 0;
  std::memcpy(&value, area + sizeof(Number) * (slot % plane.slots_per_block), sizeof(Number));
  return value;
}

class PromptWrite : public ::testing::TestWithParam<std::string> {
 protected:
  PromptLabOptions options_;

  CachePlan Plan(const LayerPlan& layer) const {
    CachePlan plan;
    plan.layers.assign(options_.num_layers, layer);
    return WithNeeds(options_, std::move(plan));
  }
  /// That slot `slot` of a segment holds token `token` of `head`.
  void ExpectToken(const PromptLab& lab, Blocks& blocks, int layer, const SegmentView& segment,
                   int head, int slot, int token) const {
    const int g = head - segment.first_kv_head;
    for (int d = 0; d < options_.head_dim; ++d) {
      const PoolView pool = blocks.pool->view();
      if (segment.use != SegmentUse::kBorrowedKeys) {
        ASSERT_EQ(KeyAt(pool, segment, g, slot, d), lab.K(layer, token, head)[d])
            << "head " << head << ", slot " << slot << ", token " << token;
      }
      ASSERT_EQ(ValueAt(pool, segment, g, slot, d, options_.head_dim), lab.V(layer, token, head)[d])
          << "head " << head << ", slot " << slot << ", token " << token;
    }
  }
};

LayerWrite WriteOf(LayerView view, std::vector<TokenRange> ranges) {
  LayerWrite write;
  write.view = view;
  write.ranges = std::move(ranges);
  return write;
}

TEST_P(PromptWrite, SelectedTokensGoToTheSlotsOfTheirRanges) {
  PromptLab lab(GetParam(), options_, Plan(PlanKeepBest({options_.tokens, 10}, {8, 5}, 30)));
  Blocks blocks(options_);
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    const LayerMeasured measured = lab.Run(layer);
    const std::vector<int32_t> kept(measured.kept.begin(), measured.kept.end());
    blocks.Add(layer, 12);
    blocks.Add(layer, 18);
    const auto status = lab.prompt().Write(
        lab.tensors(), blocks.pool->view(),
        WriteOf(blocks.view(layer), {{1, 3, 0, 15}, {0, 0, 18, 12}, {1, 0, 15, 3}}));
    ASSERT_TRUE(status.ok()) << status;
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      for (int i = 0; i < 30; ++i) {
        const auto [segment, slot] = i < 15   ? std::pair(1, 3 + i)
                                     : i < 18 ? std::pair(1, i - 15)
                                              : std::pair(0, i - 18);
        ExpectToken(lab, blocks, layer, blocks.view(layer)[segment], head, slot,
                    kept[head * 30 + i]);
      }
    }
  }
}

TEST_P(PromptWrite, ARingIsWrittenAcrossTheGapBetweenSinksAndRecentTokens) {
  PromptLab lab(GetParam(), options_, Plan(PlanKeepRing({options_.tokens, 10}, 5, 20)));
  Blocks blocks(options_);
  lab.Run(0);
  blocks.Add(0, 25);  // at once
  blocks.Add(0, 3);   // and in parts, one of which spans the gap
  blocks.Add(0, 4);
  blocks.Add(0, 18);
  blocks.Add(0, 6);  // and one token over it
  ASSERT_TRUE(
      lab.prompt()
          .Write(lab.tensors(), blocks.pool->view(),
                 WriteOf(blocks.view(0),
                         {{0, 0, 0, 25}, {1, 0, 0, 3}, {2, 0, 3, 4}, {3, 0, 7, 18}, {4, 0, 0, 6}}))
          .ok());
  const auto token = [&](int i) { return i < 5 ? i : options_.tokens - 25 + i; };
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    for (int i = 0; i < 25; ++i) {
      ExpectToken(lab, blocks, 0, blocks.view(0)[0], head, i, token(i));
      const auto [segment, slot] = i < 3   ? std::pair(1, i)
                                   : i < 7 ? std::pair(2, i - 3)
                                           : std::pair(3, i - 7);
      ExpectToken(lab, blocks, 0, blocks.view(0)[segment], head, slot, token(i));
      if (i < 6) ExpectToken(lab, blocks, 0, blocks.view(0)[4], head, i, token(i));
    }
  }
}

TEST_P(PromptWrite, SegmentsOfSomeHeadsTakeTheTokensOfThose) {
  PromptLab lab(GetParam(), options_, Plan(PlanKeepBest({options_.tokens, 10}, {8, 5}, 30)));
  Blocks blocks(options_);
  const LayerMeasured measured = lab.Run(0);
  const std::vector<int32_t> kept(measured.kept.begin(), measured.kept.end());
  blocks.Add(0, 30, CacheFormat::kF32, 1, 1);
  blocks.Add(0, 30, CacheFormat::kF32, 0, 1);
  ASSERT_TRUE(lab.prompt()
                  .Write(lab.tensors(), blocks.pool->view(),
                         WriteOf(blocks.view(0), {{0, 0, 0, 30}, {1, 0, 0, 30}}))
                  .ok());
  for (int i = 0; i < 30; ++i) {
    ExpectToken(lab, blocks, 0, blocks.view(0)[0], 1, i, kept[30 + i]);
    ExpectToken(lab, blocks, 0, blocks.view(0)[1], 0, i, kept[i]);
  }
}

TEST_P(PromptWrite, ValuesAloneLeaveTheKeysOfTheOtherLayerAsTheyWere) {
  PromptLab lab(GetParam(), options_, Plan(PlanKeepAll({options_.tokens, 10})));
  Blocks blocks(options_);
  lab.Run(0);
  blocks.Add(0, 40);
  ASSERT_TRUE(
      lab.prompt()
          .Write(lab.tensors(), blocks.pool->view(), WriteOf(blocks.view(0), {{0, 0, 0, 40}}))
          .ok());
  lab.Run(1);
  const int segment = blocks.cache.layer(1).AddValuesSegment({.format = CacheFormat::kF32Values},
                                                             blocks.cache.layer(0), 0);
  ASSERT_TRUE(blocks.cache.layer(1).Extend(segment, 40).ok());
  ASSERT_TRUE(
      lab.prompt()
          .Write(lab.tensors(), blocks.pool->view(), WriteOf(blocks.view(1), {{segment, 0, 0, 40}}))
          .ok());
  for (int t = 0; t < 40; ++t) {
    ExpectToken(lab, blocks, 0, blocks.view(0)[0], 0, t, t);
    ExpectToken(lab, blocks, 1, blocks.view(1)[segment], 1, t, t);
    EXPECT_EQ(KeyAt(blocks.pool->view(), blocks.view(1)[segment], 1, t, 3), lab.K(0, t, 1)[3]);
  }
}

TEST_P(PromptWrite, ScoredSegmentsStartWithWhatTheTokensHaveReceived) {
  PromptLab lab(GetParam(), options_, Plan(PlanKeepHeavy({options_.tokens, 10}, {12, 9})));
  Blocks blocks(options_);
  const LayerMeasured measured = lab.Run(0);
  const std::vector<int32_t> kept(measured.kept.begin(), measured.kept.end());
  CacheFormat scored = CacheFormat::kF32;
  scored.scored = true;
  blocks.Add(0, 21, scored);
  ASSERT_TRUE(
      lab.prompt()
          .Write(lab.tensors(), blocks.pool->view(), WriteOf(blocks.view(0), {{0, 0, 0, 21}}))
          .ok());
  const auto received = lab.ReceivedFromLast(0, options_.tokens);
  const SegmentView& segment = blocks.view(0)[0];
  for (int head = 0; head < 2; ++head) {
    for (int i = 0; i < 21; ++i) {
      const int token = kept[head * 21 + i];
      ExpectToken(lab, blocks, 0, segment, head, i, token);
      EXPECT_EQ(NumberAt<int32_t>(blocks.pool->view(), segment.positions, head, i), token);
      EXPECT_NEAR(NumberAt<float>(blocks.pool->view(), segment.scores, head, i),
                  received[head][token], 2e-5 * std::max(1.0, received[head][token]));
    }
  }
}

class PairWrite : public PromptWrite {
 protected:
  static constexpr int kRetained = 7;

  PairWrite() : blocks_(options_) {
    CachePlan plan;
    plan.layers.assign(3, PlanKeepAll({options_.tokens, 10}));
    plan.layers[1].merge = MergeRole::kLower;
    plan.layers[2].merge = MergeRole::kUpper;
    plan.merge = MergeOptions{.retain = 0.1};
    lab_ = std::make_unique<PromptLab>(GetParam(), options_, WithNeeds(options_, plan));
    for (int layer = 0; layer < 3; ++layer) lab_->Run(layer);
    CacheFormat merged = CacheFormat::kF32;
    merged.merged = true;
    blocks_.Add(1, options_.tokens - kRetained, merged);
    blocks_.Add(1, kRetained);
    blocks_.cache.layer(2).ShareSegment(blocks_.cache.layer(1), 0);
    blocks_.Add(2, kRetained);
  }
  LayerWrite Write() {
    LayerWrite write = WriteOf(blocks_.view(2), {{0, 0, 0, options_.tokens - kRetained}});
    write.lower = blocks_.view(1);
    write.retained = {{1, 0, 0, kRetained}};
    return write;
  }
  absl::Status Run(const LayerWrite& write) {
    return lab_->prompt().Write(lab_->tensors(), blocks_.pool->view(), write);
  }

  Blocks blocks_;
  std::unique_ptr<PromptLab> lab_;
};

TEST_P(PairWrite, RetainedTokensGoToBothLayersAndTheOthersOnceWithBothNorms) {
  ASSERT_TRUE(Run(Write()).ok());
  const int merged = options_.tokens - kRetained;
  const PoolView pool = blocks_.pool->view();
  for (int head = 0; head < 2; ++head) {
    const auto retained = RowOf(lab_->buffers().selection, head, kRetained);
    for (int i = 0; i < kRetained; ++i) {
      ExpectToken(*lab_, blocks_, 1, blocks_.view(1)[1], head, i, retained[i]);
      ExpectToken(*lab_, blocks_, 2, blocks_.view(2)[1], head, i, retained[i]);
    }
    const auto rest = RowOf(lab_->buffers().selection + 2 * kRetained, head, merged);
    for (int i = 0; i < merged; ++i) {
      for (const int layer : {1, 2}) {
        const SegmentView& segment = blocks_.view(layer)[0];
        const float *k = lab_->K(layer, rest[i], head), *v = lab_->V(layer, rest[i], head);
        const double norm_k = std::sqrt(lab_->Dot(k, k)), norm_v = std::sqrt(lab_->Dot(v, v));
        EXPECT_NEAR(NumberAt<float>(pool, segment.key_norms, head, i), norm_k, 1e-5 * norm_k);
        EXPECT_NEAR(NumberAt<float>(pool, segment.value_norms, head, i), norm_v, 1e-5 * norm_v);
      }
      // The direction lies between both: 0.6 of the angle from the lower to the upper layer.
      const float *lower = lab_->K(1, rest[i], head), *upper = lab_->K(2, rest[i], head);
      double to_lower = 0, to_upper = 0;
      for (int d = 0; d < options_.head_dim; ++d) {
        const double e = KeyAt(pool, blocks_.view(1)[0], head, i, d);
        to_lower += e * lower[d] / std::sqrt(lab_->Dot(lower, lower));
        to_upper += e * upper[d] / std::sqrt(lab_->Dot(upper, upper));
      }
      const double angle = std::acos(lab_->Dot(lower, upper) /
                                     std::sqrt(lab_->Dot(lower, lower) * lab_->Dot(upper, upper)));
      EXPECT_NEAR(std::acos(to_lower), 0.6 * angle, 1e-4);
      EXPECT_NEAR(std::acos(to_upper), 0.4 * angle, 1e-4);
    }
  }
}

/// Takes every block that is left and fills the whole pool with one byte, so that a write anywhere
/// shows.
class FilledPool {
 public:
  explicit FilledPool(BlockPool& pool) : pool_(pool), taken_(pool.free_blocks()) {
    EXPECT_TRUE(pool_.Allocate(absl::MakeSpan(taken_)).ok());
    std::memset(pool_.view().base, kByte, Bytes());
  }
  ~FilledPool() { pool_.Release(taken_); }
  FilledPool(const FilledPool&) = delete;
  FilledPool& operator=(const FilledPool&) = delete;

  bool Untouched() const {
    const std::byte* base = pool_.view().base;
    return std::all_of(base, base + Bytes(), [](std::byte b) { return b == std::byte{kByte}; });
  }

 private:
  static constexpr uint8_t kByte = 0x7f;
  size_t Bytes() const { return pool_.num_blocks() * pool_.block_bytes(); }

  BlockPool& pool_;
  std::vector<BlockId> taken_;
};

TEST_P(PairWrite, WhatDoesNotFitIsNamedAndNothingIsWritten) {
  const FilledPool filled(*blocks_.pool);
  const auto message = [&](const LayerWrite& write) { return Run(write).ToString(); };
  LayerWrite wrong = Write();
  wrong.lower = wrong.lower.subspan(1);
  EXPECT_THAT(message(wrong), HasSubstr("different segments"));
  std::vector<SegmentView> shorter(blocks_.view(1).begin(), blocks_.view(1).end());
  --shorter[0].num_slots;
  wrong = Write();
  wrong.lower = shorter;
  EXPECT_THAT(message(wrong), HasSubstr("slots 0 .. 63 of segment 0")) << "of the layer below";
  wrong = Write();
  wrong.retained = {{1, 1, 0, kRetained}};
  EXPECT_THAT(message(wrong), HasSubstr("slots 1 .. 8 of segment 1"));
  wrong = Write();
  wrong.retained = {{0, 0, 0, kRetained + 1}};
  EXPECT_THAT(message(wrong), HasSubstr("tokens 0 .. 8 of 7"));
  wrong = Write();
  wrong.ranges = {{0, 0, 1, options_.tokens - kRetained}};
  EXPECT_THAT(message(wrong), HasSubstr("tokens 1 .. 64 of 63"));
  // One layer's segment alone is too short: that of the retained tokens, or of the merged ones.
  for (const bool is_lower : {true, false}) {
    wrong = Write();
    LayerView& view = is_lower ? wrong.lower : wrong.view;
    std::vector<SegmentView> segments(view.begin(), view.end());
    view = segments;
    --segments[1].num_slots;
    EXPECT_THAT(message(wrong), HasSubstr("slots 0 .. 7 of segment 1"));
    if (is_lower) continue;
    ++segments[1].num_slots;
    --segments[0].num_slots;
    EXPECT_THAT(message(wrong), HasSubstr("slots 0 .. 63 of segment 0"));
  }
  EXPECT_TRUE(filled.Untouched());
}

TEST_P(PromptWrite, WhatDoesNotFitIsNamedAndNothingIsWritten) {
  PromptLab lab(GetParam(), options_, Plan(PlanKeepBest({options_.tokens, 10}, {8, 5}, 30)));
  Blocks blocks(options_);
  lab.Run(0);
  blocks.Add(0, 30);
  const FilledPool filled(*blocks.pool);
  const auto message = [&](std::vector<TokenRange> ranges) {
    return lab.prompt()
        .Write(lab.tensors(), blocks.pool->view(), WriteOf(blocks.view(0), std::move(ranges)))
        .ToString();
  };
  EXPECT_THAT(message({{0, 0, 0, 10}, {1, 0, 0, 1}}), HasSubstr("of segment 1"));
  EXPECT_THAT(message({{-1, 0, 0, 1}}), HasSubstr("of segment -1"));
  EXPECT_THAT(message({{0, 1, 0, 30}}), HasSubstr("slots 1 .. 31 of segment 0"));
  EXPECT_THAT(message({{0, 0, 1, 30}}), HasSubstr("tokens 1 .. 31 of 30"));
  EXPECT_THAT(message({{0, 0, -1, 1}}), HasSubstr("tokens -1 .. 0 of 30"));
  EXPECT_THAT(message({{0, 0, 0, -1}}), HasSubstr("tokens 0 .. -1 of 30"));
  EXPECT_TRUE(filled.Untouched());
  EXPECT_EQ(message({{0, 0, 0, 30}}), "OK");
  EXPECT_FALSE(filled.Untouched());
}

INSTANTIATE_TEST_SUITE_P(Backends, PromptWrite, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Backends, PairWrite, ::testing::ValuesIn(CacheOpsBackends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace ziggurat::testing

// Which prompts go through the layers together, and in which lane.
#include "scheduler/prefill_lanes.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/stub_model.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAre;

constexpr int kBatchTokens = 1000, kShortTokens = 100;

/// Lanes over the stub of four layers, and the prompts that they were given.
class PrefillLanesTest : public ::testing::Test {
 protected:
  static StubModelOptions TwoLanes() {
    StubModelOptions options;
    options.max_prefill_tokens = 4000;
    options.short_prefill_tokens = kShortTokens;
    return options;
  }

  void Push(const std::vector<int>& prompts, int window_rows = 0) {
    for (const int tokens : prompts) {
      Sequence& sequence = *sequences_.emplace_back(std::make_unique<Sequence>());
      sequence.request.prompt.resize(tokens);
      sequence.block_plan.plan.needs.window_rows = window_rows;
      lanes_.Push(&sequence);
    }
  }
  /// Lengths of the prompts of the batch that the lane takes next.
  std::vector<int> Fill(int lane) {
    std::vector<int> prompts;
    lanes_.batch(lane).reset();
    if (!lanes_.Fill(lane)) return prompts;
    int tokens = 0;
    for (const Sequence* sequence : lanes_.batch(lane)->sequences) {
      prompts.push_back(sequence->prompt_tokens());
      tokens += prompts.back();
    }
    EXPECT_EQ(lanes_.batch(lane)->tokens, tokens);
    return prompts;
  }

  StubModel model_{TwoLanes()};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  PrefillLanes lanes_{&model_, kBatchTokens};
};

TEST_F(PrefillLanesTest, ABatchIsFullToItsLastToken) {
  Push({400, 600, 1, 999, 1, 1});
  EXPECT_THAT(Fill(0), ElementsAre(400, 600));
  EXPECT_THAT(Fill(0), ElementsAre(1));
  EXPECT_THAT(Fill(0), ElementsAre(999));
  EXPECT_THAT(Fill(0), ElementsAre(1, 1));
  EXPECT_THAT(Fill(0), ElementsAre());
  Push({2000, 500});
  EXPECT_THAT(Fill(0), ElementsAre(2000)) << "alone it may be longer";
}

TEST_F(PrefillLanesTest, APromptIsWorthOvertakingAtFourTimesItsWork) {
  Push({400, 101, 100, 99});
  EXPECT_THAT(Fill(0), ElementsAre(400, 101)) << "101 tokens are no short prompt";
  EXPECT_THAT(Fill(1), ElementsAre(100));
  EXPECT_THAT(Fill(1), ElementsAre(99));
  Push({399, 100});
  EXPECT_THAT(Fill(0), ElementsAre(399, 100)) << "less than four times";
  Push({50, 100});
  EXPECT_THAT(Fill(0), ElementsAre(50, 100)) << "100 tokens are short";
  Push({20, 100, 101});
  EXPECT_THAT(Fill(0), ElementsAre(20, 100));
}

TEST_F(PrefillLanesTest, WhatIsLeftOfTheLongOneCounts) {
  Push({800});
  EXPECT_THAT(Fill(0), ElementsAre(800));
  lanes_.batch(0)->next_layer = 2;
  Push({100, 60, 41});
  EXPECT_THAT(Fill(1), ElementsAre(100)) << "half of 800";
  lanes_.batch(0)->next_layer = 3;
  EXPECT_THAT(Fill(1), ElementsAre(41)) << "a quarter of it is less than four times 60";
}

TEST_F(PrefillLanesTest, TheSecondLaneIsFullToItsLastToken) {
  Push({1000, 60, 40, 1});
  EXPECT_THAT(Fill(0), ElementsAre(1000));
  EXPECT_THAT(Fill(1), ElementsAre(60, 40));
  EXPECT_THAT(Fill(1), ElementsAre(1));
  lanes_.batch(0).reset();
  Push({100});
  EXPECT_THAT(Fill(1), ElementsAre()) << "there is nobody to wait for";
}

TEST_F(PrefillLanesTest, WhatPoliciesMeasureTakesRoomToo) {
  // Of 3,000 tokens and the queries of all of them there is room for what 4,000 take at most.
  PrefillLanes wide(&model_, 4000);
  std::vector<std::unique_ptr<Sequence>> sequences;
  const size_t row = model_.PromptNeedsBytes(1, {.window_rows = 1});
  const size_t room = model_.lanes()[0].capacity_bytes - model_.WorkspaceBytes(3000);
  const int rows = static_cast<int>(room / row / 3);
  for (const int window_rows : {rows, rows, rows, rows + 3, rows, rows}) {
    Sequence& sequence = *sequences.emplace_back(std::make_unique<Sequence>());
    sequence.request.prompt.resize(1000);
    sequence.block_plan.plan.needs.window_rows = window_rows;
    wide.Push(&sequence);
  }
  ASSERT_TRUE(wide.Fill(0));
  EXPECT_EQ(wide.batch(0)->sequences.size(), 3u);
  wide.batch(0).reset();
  ASSERT_TRUE(wide.Fill(0));
  EXPECT_EQ(wide.batch(0)->sequences.size(), 2u) << "a row for each prompt too many";
}

/// Notes what is dropped, and does nothing else.
class NotingBatch final : public PromptBatch {
 public:
  explicit NotingBatch(std::vector<int>* dropped) : dropped_(dropped) {}
  void Drop(int prompt) override { dropped_->push_back(prompt); }
  absl::StatusOr<bool> AttendLayer(int /*layer*/, PauseTest /*pause*/,
                                   std::vector<LayerMeasured>* /*measured*/) override {
    return true;
  }
  absl::Status WriteLayer(int /*layer*/, absl::Span<const LayerWrite> /*writes*/) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> FinishLayer(int /*layer*/, PauseTest /*pause*/,
                                   std::vector<double>* /*cosines*/) override {
    return true;
  }
  absl::Status SelectStored(int /*prompt*/, int /*layer*/, const KeepBest& /*edit*/,
                            std::vector<int32_t>* /*kept*/) override {
    return absl::OkStatus();
  }
  absl::Status LastLogits(float* /*logits*/) override { return absl::OkStatus(); }

 private:
  std::vector<int>* dropped_;
};

TEST_F(PrefillLanesTest, APromptThatGoesIsDroppedFromItsBatchAlone) {
  Push({300, 200, 100, 900});
  ASSERT_THAT(Fill(0), ElementsAre(300, 200, 100));
  std::vector<int> dropped;
  lanes_.batch(0)->prompts = std::make_unique<NotingBatch>(&dropped);
  lanes_.Remove(sequences_[1].get());
  EXPECT_THAT(dropped, ElementsAre(1));
  EXPECT_EQ(lanes_.batch(0)->LongestPrompt(), 300);
  lanes_.Remove(sequences_[0].get());
  EXPECT_THAT(dropped, ElementsAre(1, 0)) << "places stay what they were";
  EXPECT_EQ(lanes_.batch(0)->LongestPrompt(), 100);
  EXPECT_FALSE(lanes_.batch(0)->is_empty());
  lanes_.Remove(sequences_[2].get());
  EXPECT_TRUE(lanes_.batch(0)->is_empty());
  lanes_.batch(0).reset();
  lanes_.Remove(sequences_[3].get());
  EXPECT_THAT(Fill(0), ElementsAre()) << "one that waits just goes";
}

TEST_F(PrefillLanesTest, LanesTakeTurnsWhereBothHaveABatch) {
  EXPECT_EQ(lanes_.NextLane(), -1);
  Push({1000, 50});
  Fill(0);
  EXPECT_EQ(lanes_.NextLane(), 0);
  EXPECT_EQ(lanes_.NextLane(), 0);
  Fill(1);
  EXPECT_EQ(lanes_.NextLane(), 1);
  EXPECT_EQ(lanes_.NextLane(), 0);
  EXPECT_EQ(lanes_.NextLane(), 1);
  lanes_.batch(1).reset();
  EXPECT_EQ(lanes_.NextLane(), 0);
}

}  // namespace
}  // namespace ziggurat

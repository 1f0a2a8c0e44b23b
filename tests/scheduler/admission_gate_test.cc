#include "scheduler/admission_gate.h"

#include <gtest/gtest.h>

#include <vector>

#include "scheduler/metrics.h"
#include "scheduler/refusal.h"

namespace ziggurat {
namespace {

class AdmissionGateTest : public ::testing::Test {
 protected:
  /// Whether a request of so many blocks comes in. What it was promised is noted.
  bool Enters(size_t blocks) {
    return gate_.Enter(blocks, [&](Places promised) { sent_.push_back(promised); }).ok();
  }
  /// The step that has got all that was sent.
  void Publish(int finished, int running, Places free) {
    Places reached;
    for (const Places& promised : sent_) reached += promised;
    sent_.clear();
    gate_.Publish(finished, reached, running, free);
  }

  Metrics metrics_;
  AdmissionGate gate_{/*max_queue=*/2, &metrics_};
  std::vector<Places> sent_;  ///< since the last step
};

TEST_F(AdmissionGateTest, AQueueTakesAsManyAsItMay) {
  EXPECT_TRUE(Enters(1) && Enters(1));
  EXPECT_EQ(sent_[1].requests, 0) << "no step has said that there is room";
  const absl::Status full = gate_.CheckOpen(0);
  EXPECT_EQ(RefusalReason(full), "queue_full");
  EXPECT_EQ(full.message(), "the queue is full: 2 requests are waiting, at most 2 may");
  EXPECT_FALSE(Enters(1));
  EXPECT_EQ(sent_.size(), 2u) << "who is refused is not sent";
  Publish(0, /*running=*/1, {});
  EXPECT_TRUE(Enters(1)) << "one of them was admitted";
  EXPECT_FALSE(Enters(1));
}

TEST_F(AdmissionGateTest, WhoIsPromisedAPlaceDoesNotWait) {
  Publish(0, 0, {.requests = 3, .blocks = 10});
  EXPECT_TRUE(Enters(8));
  EXPECT_EQ(sent_[0].blocks, 8u);
  EXPECT_TRUE(Enters(3)) << "behind it, in the queue";
  EXPECT_EQ(sent_[1].requests, 0);
  EXPECT_TRUE(Enters(2));
  EXPECT_EQ(sent_[2].requests, 1) << "a smaller one fits in beside the first";
  EXPECT_TRUE(Enters(1)) << "the second that waits";
  EXPECT_FALSE(Enters(1));
}

TEST_F(AdmissionGateTest, APromiseHoldsUntilItHasReachedTheEngine) {
  Publish(0, 0, {.requests = 2, .blocks = 10});
  EXPECT_TRUE(Enters(9));
  // A step that has not seen it yet finds the same room.
  gate_.Publish(0, {}, 0, {.requests = 2, .blocks = 10});
  EXPECT_TRUE(Enters(2));
  EXPECT_EQ(sent_[1].requests, 0) << "one block is left";
  Publish(0, 2, {.requests = 0, .blocks = 10});
  EXPECT_TRUE(Enters(1));
  EXPECT_EQ(sent_[0].requests, 0) << "blocks, and nobody more may run";
}

TEST_F(AdmissionGateTest, AsksForThoseWhoComeFirst) {
  Publish(0, 0, {.requests = 2, .blocks = 10});
  EXPECT_TRUE(gate_.CheckOpen(/*before=*/3).ok()) << "two have places, and one waits";
  EXPECT_FALSE(gate_.CheckOpen(/*before=*/4).ok());
  Publish(0, 0, {.requests = 2, .blocks = 0});
  EXPECT_FALSE(gate_.CheckOpen(/*before=*/2).ok()) << "places without blocks are none";
}

TEST_F(AdmissionGateTest, IsEmptyWhenAllThatCameInAreOver) {
  EXPECT_TRUE(gate_.AwaitEmpty(absl::ZeroDuration()));
  EXPECT_TRUE(Enters(1) && Enters(1));
  Publish(1, 1, {});
  EXPECT_FALSE(gate_.AwaitEmpty(absl::ZeroDuration()));
  Publish(1, 0, {});
  EXPECT_TRUE(gate_.AwaitEmpty(absl::InfiniteDuration()));
}

TEST_F(AdmissionGateTest, ClosedItSaysThatTheServerDrains) {
  Publish(0, 0, {.requests = 2, .blocks = 10});
  gate_.Close();
  EXPECT_EQ(RefusalReason(gate_.CheckOpen(0)), "draining");
  EXPECT_FALSE(Enters(1));
  EXPECT_TRUE(sent_.empty());
}

}  // namespace
}  // namespace ziggurat

#include "scheduler/waiting_queue.h"

#include "gtest/gtest.h"

namespace ziggurat {
namespace {

std::unique_ptr<Sequence> Waiting(RequestId id, size_t blocks) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->block_plan.total_blocks = blocks;
  return sequence;
}

/// The request that is admitted into so many blocks; 0: none.
RequestId Next(WaitingQueue& queue, size_t available_blocks) {
  const std::unique_ptr<Sequence> sequence = queue.PopFitting(available_blocks);
  return sequence == nullptr ? 0 : sequence->id;
}

TEST(WaitingQueueTest, TheFirstComesFirstWhenAllFit) {
  WaitingQueue queue(4);
  for (RequestId id = 1; id <= 3; ++id) queue.Push(Waiting(id, 10));
  for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(queue.PopFitting(10)->id, id);
  EXPECT_EQ(queue.PopFitting(10), nullptr);
}

TEST(WaitingQueueTest, ALargeRequestIsPassedOverAtMostTheLimit) {
  WaitingQueue queue(2);
  queue.Push(Waiting(1, 100));
  for (RequestId id = 2; id <= 5; ++id) queue.Push(Waiting(id, 10));
  EXPECT_EQ(queue.PopFitting(50)->id, 2u);
  EXPECT_EQ(queue.PopFitting(50)->id, 3u);
  EXPECT_EQ(queue.PopFitting(50), nullptr) << "request 1 was passed over twice";
  EXPECT_EQ(queue.PopFitting(100)->id, 1u);
  EXPECT_EQ(queue.PopFitting(50)->id, 4u);
}

TEST(WaitingQueueTest, OnlyThoseBeforeItArePassedOver) {
  WaitingQueue queue(1);
  queue.Push(Waiting(1, 10));
  queue.Push(Waiting(2, 100));
  queue.Push(Waiting(3, 10));
  queue.Push(Waiting(4, 10));
  EXPECT_EQ(Next(queue, 50), 1u);
  EXPECT_EQ(Next(queue, 50), 3u) << "request 2 was not passed over yet";
  EXPECT_EQ(Next(queue, 50), 0u);
}

TEST(WaitingQueueTest, OneBlockMoreMayBeTheOneThatWasMissing) {
  WaitingQueue queue(4);
  queue.Push(Waiting(1, 51));
  EXPECT_EQ(Next(queue, 50), 0u);
  EXPECT_EQ(Next(queue, 50), 0u);
  EXPECT_EQ(Next(queue, 51), 1u);
  queue.Push(Waiting(2, 51));
  EXPECT_EQ(Next(queue, 50), 0u);
  queue.Push(Waiting(3, 50));
  EXPECT_EQ(Next(queue, 50), 3u) << "it was not there before";
}

TEST(WaitingQueueTest, ARemovedRequestNoLongerBlocksOthers) {
  WaitingQueue queue(0);
  queue.Push(Waiting(1, 100));
  queue.Push(Waiting(2, 10));
  EXPECT_EQ(queue.PopFitting(50), nullptr);
  EXPECT_EQ(queue.Remove(1)->id, 1u);
  EXPECT_EQ(queue.PopFitting(50)->id, 2u);
  EXPECT_EQ(queue.Remove(7), nullptr);
}

TEST(WaitingQueueTest, ExpiredRequestsLeave) {
  WaitingQueue queue(4);
  const SteadyTime now = std::chrono::steady_clock::now();
  queue.Push(Waiting(1, 1));
  queue.Push(Waiting(2, 1));
  queue.Push(Waiting(3, 1));
  auto late = Waiting(4, 1);
  late->request.deadline = now;
  queue.Push(std::move(late));
  const auto expired = queue.RemoveExpired(now);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0]->id, 4u);
  EXPECT_EQ(queue.size(), 3u);
}

TEST(WaitingQueueTest, ThoseThatAreLeftExpireInTheirTurn) {
  WaitingQueue queue(0);
  const SteadyTime now = std::chrono::steady_clock::now();
  for (RequestId id = 1; id <= 3; ++id) {
    auto sequence = Waiting(id, id < 3 ? 100 : 10);
    sequence->request.deadline = now + std::chrono::seconds(id);
    queue.Push(std::move(sequence));
  }
  EXPECT_EQ(Next(queue, 50), 0u);
  for (RequestId id = 1; id < 3; ++id) {
    EXPECT_TRUE(queue.RemoveExpired(now + std::chrono::milliseconds(1000 * id - 1)).empty());
    const auto expired = queue.RemoveExpired(now + std::chrono::seconds(id));
    ASSERT_EQ(expired.size(), 1u);
    EXPECT_EQ(expired[0]->id, id);
  }
  EXPECT_EQ(Next(queue, 50), 3u) << "nothing is before it any more";
}

}  // namespace
}  // namespace ziggurat

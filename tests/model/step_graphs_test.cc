// Which decode steps get a graph, whatever graphs are made of.
#include "model/cuda/step_graphs.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace ziggurat::cuda {
namespace {

StepBucket Bucket(int items) {
  StepBucket bucket;
  bucket.items = items;
  return bucket;
}

/// Counts what is asked of it; recordings succeed as long as `answer` does.
class StepGraphsTest : public testing::Test {
 protected:
  class CountedGraph final : public Graph {
   public:
    explicit CountedGraph(int* launches) : launches_(launches) {}
    void Launch(const Stream&) override { ++*launches_; }

   private:
    int* launches_;
  };

  StepGraphs Make(size_t most) {
    return StepGraphs(
        most,
        [this](Stream&,
               const std::function<void()>& work) -> absl::StatusOr<std::unique_ptr<Graph>> {
          ++recordings;
          const bool before = std::exchange(is_recording, true);
          work();
          is_recording = before;
          if (!answer.ok()) return answer;
          return std::make_unique<CountedGraph>(&launches);
        });
  }
  absl::Status Run(StepGraphs& graphs, int items) {
    return graphs.Run(Bucket(items), *stream, [this] {
      if (is_recording) return recorded_work;
      ++plain_steps;
      return absl::OkStatus();
    });
  }
  void RunAll(StepGraphs& graphs, const std::vector<int>& buckets) {
    for (const int items : buckets) EXPECT_TRUE(Run(graphs, items).ok());
  }

  const std::unique_ptr<Stream> stream = Stream::Create();
  absl::Status answer, recorded_work;
  int recordings = 0, launches = 0, plain_steps = 0;
  bool is_recording = false;
};

TEST_F(StepGraphsTest, TheSecondStepOfABucketIsRecordedAndAllAfterItAreLaunches) {
  StepGraphs graphs = Make(4);
  RunAll(graphs, {1, 1, 1, 2, 1});
  EXPECT_EQ(recordings, 1);
  EXPECT_EQ(launches, 3);
  EXPECT_EQ(plain_steps, 2);
}

TEST_F(StepGraphsTest, BucketsSeenOnceTakeNobodysPlace) {
  StepGraphs graphs = Make(2);
  RunAll(graphs, {1, 1});
  for (int items = 2; items < 100; ++items) RunAll(graphs, {items});
  RunAll(graphs, {1, 1});
  EXPECT_EQ(recordings, 1);
  EXPECT_EQ(launches, 3);
}

TEST_F(StepGraphsTest, TheOneLaunchedLongestAgoGoes) {
  StepGraphs graphs = Make(2);
  RunAll(graphs, {1, 1, 2, 2, 1});
  RunAll(graphs, {3, 3});
  EXPECT_EQ(graphs.size(), 2u);
  EXPECT_EQ(recordings, 3);
  RunAll(graphs, {1, 3});  // those that stayed
  EXPECT_EQ(recordings, 3);
  EXPECT_EQ(launches, 6);
  RunAll(graphs, {2, 2});  // which went
  EXPECT_EQ(recordings, 4);
}

TEST_F(StepGraphsTest, WhatCannotBeRecordedGoesAsItComesAndIsNotTriedAgain) {
  for (const absl::Status& why :
       {absl::InternalError("no"), absl::ResourceExhaustedError("no memory")}) {
    recordings = plain_steps = launches = 0;
    StepGraphs graphs = Make(2);
    answer = why;
    RunAll(graphs, {1, 1, 1, 1});
    EXPECT_EQ(recordings, 1);
    EXPECT_EQ(plain_steps, 4);
    answer = absl::OkStatus();
    RunAll(graphs, {2, 2, 1});  // others may be recorded
    EXPECT_EQ(recordings, 2);
    EXPECT_EQ(launches, 1);
  }
}

TEST_F(StepGraphsTest, AStepThatFailsOnlyWhileItIsRecordedIsRunWithoutAGraph) {
  StepGraphs graphs = Make(2);
  recorded_work = absl::InternalError("not in a graph");
  RunAll(graphs, {1, 1, 1});
  EXPECT_EQ(recordings, 1);
  EXPECT_EQ(plain_steps, 3);
  EXPECT_EQ(graphs.size(), 0u);
}

TEST_F(StepGraphsTest, RoomForOneIsReasonToTryAgain) {
  StepGraphs graphs = Make(1);
  RunAll(graphs, {1, 1});
  answer = absl::ResourceExhaustedError("no memory");
  RunAll(graphs, {2, 2});
  answer = absl::OkStatus();
  RunAll(graphs, {3, 3});  // takes the place of 1
  RunAll(graphs, {2});
  EXPECT_EQ(recordings, 4);
  EXPECT_EQ(launches, 3);
}

TEST_F(StepGraphsTest, NothingIsLaunchedThatWasRecordedBeforeAClear) {
  StepGraphs graphs = Make(2);
  RunAll(graphs, {1, 1});
  graphs.Clear();
  RunAll(graphs, {1});
  EXPECT_EQ(recordings, 2);
}

}  // namespace
}  // namespace ziggurat::cuda

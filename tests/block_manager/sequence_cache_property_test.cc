// Random operations over many sequences with unequal layers, in a pool too small for them, beside a
// plain model. A failure prints the seed and the shrunk list of operations.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "tests/block_manager/table_machine.h"

namespace ziggurat {
namespace {

// rapidcheck's ranges grow with the size of a run, from nearly nothing; these need not.
template <typename T>
rc::Gen<T> AtFullSize(rc::Gen<T> gen) {
  return rc::gen::resize(rc::kNominalSize, std::move(gen));
}

rc::Gen<Operation> AnyOperation() {
  using rc::gen::inRange;
  const auto kind = rc::gen::weightedElement<Kind>({{6, Kind::kAddSegment},
                                                    {4, Kind::kShareSegment},
                                                    {6, Kind::kRefreshShared},
                                                    {2, Kind::kAddValuesSegment},
                                                    {2, Kind::kRefreshKeys},
                                                    {8, Kind::kExtend},
                                                    {16, Kind::kAppend},
                                                    {8, Kind::kTakeAhead},
                                                    {4, Kind::kTruncate},
                                                    {8, Kind::kRemoveFirst},
                                                    {1, Kind::kMakeRing},
                                                    {2, Kind::kClearLayer},
                                                    {1, Kind::kClearSequence},
                                                    {1, Kind::kReplaceSequence},
                                                    {1, Kind::kMoveSequence}});
  // noShrink: fewer operations make a failure clear; smaller numbers hardly do, and cost much time.
  return rc::gen::noShrink(
      rc::gen::build<Operation>(rc::gen::set(&Operation::kind, kind),
                                rc::gen::set(&Operation::sequence, inRange<uint32_t>(0, 1 << 20)),
                                rc::gen::set(&Operation::layer, inRange<uint32_t>(0, 1 << 20)),
                                rc::gen::set(&Operation::segment, inRange<uint32_t>(0, 1 << 20)),
                                rc::gen::set(&Operation::shape, inRange<uint32_t>(0, 1 << 20)),
                                rc::gen::set(&Operation::tokens, inRange<uint32_t>(0, 1 << 20))));
}

rc::Gen<std::vector<Operation>> Operations(size_t count) {
  return rc::gen::shrink(
      rc::gen::container<std::vector<Operation>>(count, AnyOperation()),
      [](std::vector<Operation> ops) { return rc::shrink::removeChunks(std::move(ops)); });
}

CacheGeometry Geometry(int num_layers, int kv_heads, int head_dim) {
  return {num_layers, kv_heads, head_dim, CacheGeometry::DefaultBlockBytes(kv_heads, head_dim)};
}

// As RC_GTEST_PROP, with a number of runs of its own: a run of ten thousand operations is long.
template <typename Testable>
void CheckProperty(int runs, Testable property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = runs;
  rc::detail::TestMetadata metadata;
  metadata.id = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  metadata.description = metadata.id;
  const rc::detail::TestResult result = rc::detail::checkTestable(property, metadata, params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.is<rc::detail::SuccessResult>())
      << message.str() << "\nseed " << params.seed << " (RC_PARAMS=\"seed=" << params.seed << "\")";
}

// What was to be tried was tried.
void ExpectVaried(const MachineCounts& counts, bool is_tight) {
  EXPECT_GT(counts.overwritten, 100u);
  EXPECT_GT(counts.shared, 100u);
  EXPECT_GT(counts.followed, 100u);
  EXPECT_GT(counts.shrunk, 10u);
  EXPECT_GT(counts.lent, 100u);
  EXPECT_GT(counts.truncated, 100u);
  EXPECT_GT(counts.cut_in_front, 5u);
  EXPECT_GT(counts.ringed, 20u);
  if (is_tight) {
    EXPECT_GT(counts.refused, 100u);
  }
}

// Small worlds, everything checked after every operation: these are the ones that shrink well.
TEST(SequenceCachePropertyTest, EveryOperationKeepsTheTablesAndThePoolInAgreement) {
  MachineCounts counts;
  CheckProperty(1000, [&] {
    const int num_sequences = *AtFullSize(rc::gen::inRange(1, 4));
    const int num_layers = *AtFullSize(rc::gen::inRange(2, 5));
    const auto geometry =
        Geometry(num_layers, *rc::gen::element(2, 3, 4), *rc::gen::element(8, 16));
    const size_t pool_blocks = *AtFullSize(rc::gen::inRange<size_t>(1, 120));
    const auto operations = *Operations(*AtFullSize(rc::gen::inRange<size_t>(1, 300)));
    TableMachine machine(num_sequences, pool_blocks, geometry);
    for (const Operation& op : operations) {
      machine.Run(op);
      machine.CheckPool(op);
      machine.CheckAll();
    }
    counts.Add(machine.counts());
    machine.Finish();
  });
  std::ostringstream text;
  text << counts;
  std::printf("small worlds: %s\n", text.str().c_str());
  ExpectVaried(counts, true);
}

// Thirty thousand operations over a hundred sequences, twice each with a pool that is nearly always
// full and with one that never is.
TEST(SequenceCachePropertyTest, ThirtyThousandOperationsNeverLoseLeakOrDoubleOwnABlock) {
  for (const size_t pool_blocks : {400, 40000}) {
    MachineCounts counts;
    CheckProperty(2, [&] {
      const std::vector<Operation> operations = *Operations(30'000);
      TableMachine machine(100, pool_blocks, Geometry(4, 4, 16));
      for (size_t i = 0; i < operations.size(); ++i) {
        machine.Run(operations[i]);
        machine.CheckPool(operations[i]);
        if (i % 64 == 0) {
          machine.CheckAll();
        }
      }
      machine.CheckAll();
      counts.Add(machine.counts());
      machine.Finish();
    });
    std::ostringstream text;
    text << counts;
    std::printf("pool of %zu blocks: %s\n", pool_blocks, text.str().c_str());
    ExpectVaried(counts, pool_blocks == 400);
  }
}

}  // namespace
}  // namespace ziggurat

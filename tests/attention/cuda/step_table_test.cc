// The table that is patched step by step: the device sees what the host meant, and little is sent.

#include "attention/cuda/step_table.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>
#include <vector>

#include "attention/cuda/decode.h"
#include "attention/cuda/table_image.h"
#include "tests/attention/cuda/device_memory.h"
#include "tests/attention/decode_batch.h"

namespace ziggurat::cuda {
namespace {

/// Sends the patches of a table to its copy on the device.
void Send(StepTable& table, const OnDevice& device) {
  const auto count = static_cast<uint32_t>(table.patches().size());
  OnDevice patches(table.patches().data(), count * sizeof(TablePatch));
  OnDevice device_count(&count, sizeof(count));
  LaunchApplyPatches(patches.get<TablePatch>(), device_count.get<uint32_t>(),
                     static_cast<int>(count), device.get<uint32_t>(), TestStream().get());
  table.Sent();
}

std::vector<uint32_t> Words(const StepTable& table) {
  return {table.mirror().begin(), table.mirror().end()};
}

TEST(StepTable, PatchesOnlyWhatIsAnother) {
  StepTable table(100);
  const uint32_t word = table.Allocate(3);
  EXPECT_EQ(word % 2, 0u);
  table.Set(word, 5);
  table.Set(word, 6);
  table.Set(word + 1, 0);  // what it is
  ASSERT_EQ(table.patches().size(), 1u);
  EXPECT_EQ(table.patches()[0].word, word);
  EXPECT_EQ(table.patches()[0].value, 6u);
  table.Sent();
  table.Set(word, 6);
  EXPECT_TRUE(table.patches().empty());
}

// Else decode attention would take the way that any segment can go, and nobody would notice but by
// the time.
TEST(StepTable, SegmentsOfCodesFitTheStagesOfDecodeAttention) {
  for (const auto& [format, head_dim] : {std::pair{CacheFormat{Encoding::kInt8}, 128},
                                         {CacheFormat{Encoding::kFp8}, 64},
                                         {CacheFormat{Encoding::kInt4, 32}, 128},
                                         {CacheFormat{Encoding::kInt2, 64}, 128}}) {
    const AttentionShape shape{8, 2, head_dim, 1};
    const Batch batch(format, shape, {300});
    TableImage image;
    const uint32_t in_image = image.AddSegment(batch.segments[0][0]);
    StepTable table(4096);
    LayerTable layer;
    ASSERT_TRUE(table.AddLayer(1, &layer));
    ASSERT_TRUE(table.UpdateLayer(batch.items[0], &layer));
    for (const uint32_t* words :
         {image.words().data() + in_image, table.mirror().data() + layer.records}) {
      EXPECT_TRUE(FitsStages(*reinterpret_cast<const DeviceSegment*>(words), head_dim))
          << CacheFormatName(format);
    }
  }
}

/// All extents of `words` words that a table has.
std::vector<uint32_t> FillUp(StepTable& table, uint32_t words) {
  std::vector<uint32_t> extents;
  for (uint32_t e = table.Allocate(words); e != StepTable::kFull; e = table.Allocate(words)) {
    extents.push_back(e);
  }
  return extents;
}

TEST(StepTable, GivesExtentsBackAndSaysWhenItIsFull) {
  StepTable table(64);
  const std::vector<uint32_t> extents = FillUp(table, 7);
  EXPECT_EQ(extents.size(), 7u);  // nothing stands at word 0
  EXPECT_EQ(table.used_words(), 56u);
  for (uint32_t e : extents) table.Free(e, 7);
  EXPECT_EQ(table.used_words(), 0u);
  EXPECT_NE(table.Allocate(8), StepTable::kFull);
}

TEST(StepTable, JoinsSmallExtentsToLargeOnesAgain) {
  StepTable table(1 << 12);
  std::vector<uint32_t> small = FillUp(table, 2);
  EXPECT_EQ(small.size(), (1u << 11) - 1);
  std::shuffle(small.begin(), small.end(), std::mt19937(1));
  for (uint32_t e : small) table.Free(e, 2);
  const uint32_t large = table.Allocate(1 << 11);
  EXPECT_EQ(large, 1u << 11);
  EXPECT_EQ(table.Allocate(1 << 11), StepTable::kFull);
}

TEST(StepTable, GivesNoWordTwiceInACrowdOfExtentsThatComeAndGo) {
  constexpr uint32_t kWords = 3000;  // not a power of two
  StepTable table(kWords);
  std::vector<int> owner(kWords, 0);
  struct Extent {
    uint32_t word, words;
    int id;
  };
  std::vector<Extent> held;
  std::mt19937 random(5);
  uint32_t used = 0;
  for (int id = 1; id < 5000; ++id) {
    const uint32_t words = 1 + random() % (1u << (random() % 9));
    if (const uint32_t word = table.Allocate(words); word != StepTable::kFull) {
      ASSERT_GE(word, 2u);
      ASSERT_EQ(word % 2, 0u);
      ASSERT_LE(word + words, kWords);
      for (uint32_t w = word; w < word + words; ++w) {
        ASSERT_EQ(owner[w], 0) << "word " << w << " was given twice";
        owner[w] = id;
      }
      used += std::bit_ceil(std::max(words, 2u));
      held.push_back({word, words, id});
    }
    while (!held.empty() && random() % 9 < 4) {
      std::swap(held[random() % held.size()], held.back());
      const Extent gone = held.back();
      held.pop_back();
      table.Free(gone.word, gone.words);
      used -= std::bit_ceil(std::max(gone.words, 2u));
      std::fill_n(owner.begin() + gone.word, gone.words, 0);
    }
    ASSERT_EQ(table.used_words(), used);
  }
  for (const Extent& extent : held) table.Free(extent.word, extent.words);
  EXPECT_EQ(table.used_words(), 0u);
  EXPECT_NE(table.Allocate(1024), StepTable::kFull);
}

TEST(StepTable, MakesTheDevicesCopyEqualThroughAnyChanges) {
  StepTable table(4000);
  std::vector<uint32_t> zeros(4000);
  OnDevice device(zeros.data(), zeros.size() * 4);
  std::mt19937 random(3);
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < 300; ++i) table.Set(random() % 4000, random() % 5);
    Send(table, device);
    std::vector<uint32_t> copy(4000);
    device.CopyTo(copy.data());
    ASSERT_EQ(copy, Words(table)) << "step " << step;
  }
}

TEST(StepTable, ServesGrowingSequencesWithTheSameLaunchAndFewWords) {
  const AttentionShape shape = Shape(4, 2, 32);
  const std::vector<int> lengths = {5, 62, 14, 130};
  constexpr int kSteps = 40, kWorkers = 12;
  std::vector<int> room = lengths;
  for (int& length : room) length += kSteps;
  Batch batch(CacheFormat::kBf16, shape, room);

  StepTable table(1 << 14);
  const std::vector<uint32_t> zeros(1 << 14);
  OnDevice device_table(zeros.data(), zeros.size() * 4);
  OnDevice pool(batch.pool.bytes().data(), batch.pool.bytes().size());
  std::vector<LayerTable> layers(lengths.size());
  DeviceItems items;
  items.capacity = static_cast<int>(lengths.size());
  items.first = table.Allocate(items.capacity * sizeof(DeviceItem) / 4);
  items.count = table.Allocate(1);
  table.Set(items.count, items.capacity);
  for (size_t i = 0; i < layers.size(); ++i) {
    ASSERT_TRUE(table.AddLayer(1, &layers[i]));
    DeviceItem item;
    item.segments = layers[i].records;
    item.num_segments = 1;
    table.Put(items.first + static_cast<uint32_t>(i * sizeof(DeviceItem) / 4), item);
  }
  DecodeBucket bucket;
  bucket.shape = shape;
  bucket.max_items = items.capacity;
  bucket.max_runs = 8;
  bucket.workers = DecodeWorkers::Alike(kWorkers);
  OnDevice scratch(DecodeScratchBytes(bucket));
  const std::vector<float> q = Queries(Encoding::kBf16, shape, lengths.size(), 5);
  OnDevice device_q(q.data(), q.size() * 4), out(q.size() * 4);
  const DeviceCache cache{pool.get<unsigned char>(), batch.pool.view().block_bytes,
                          device_table.get<const uint32_t>()};
  size_t words_after_first = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<SegmentView> views;
    for (size_t i = 0; i < layers.size(); ++i) {
      views.push_back(batch.segments[i][0]);
      views.back().num_slots = lengths[i] + step;
      // Every other step by a view that was taken a token before.
      SegmentView seen = views.back();
      if (step % 2 == 1) --seen.num_slots;
      const TokenTarget target = {0, views.back().num_slots - 1};
      const DecodeItem item = {{&seen, 1}, {&target, 1}};
      ASSERT_TRUE(table.UpdateLayer(item, &layers[i]));
    }
    if (step > 0) words_after_first += table.patches().size();
    Send(table, device_table);
    LaunchPlanDecode(bucket, cache, items, /*stride=*/0, scratch.get(), TestStream().get());
    LaunchDecodeAttention(bucket, cache, items, /*layer=*/0, device_q.get<float>(),
                          {out.get<float>()}, scratch.get(), TestStream().get());
    std::vector<float> actual(q.size());
    out.CopyTo(actual.data());
    std::vector<DecodeItem> host_items;
    for (const SegmentView& view : views) host_items.push_back({{&view, 1}});
    const Decoded expected =
        RunDecode(*MakeReferenceBackend(), shape, host_items, q, batch.pool.view());
    ASSERT_LE(Deviation(actual, expected.out), 1e-5) << "step " << step;
  }
  // A count for each sequence and step, a block number for every 16 tokens, and lists that moved
  // as they grew: far from the hundreds of words that the records of a step have.
  EXPECT_LE(words_after_first, size_t{kSteps} * lengths.size() * 2);
  for (LayerTable& layer : layers) table.RemoveLayer(&layer);
  table.Free(items.first, items.capacity * sizeof(DeviceItem) / 4);
  table.Free(items.count, 1);
  EXPECT_EQ(table.used_words(), 0u);
}

}  // namespace
}  // namespace ziggurat::cuda

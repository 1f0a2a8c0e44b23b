// The order in which decode attention takes what a job's blocks hold.
#include "attention/cpu/chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "attention/cpu/decode_kernel.h"

namespace ziggurat::cpu {
namespace {

constexpr int kHeads = 3;
constexpr uint32_t kSlots = 16;  // of a block
constexpr size_t kRowBytes = 8;
constexpr size_t kAreaBytes = kSlots * kRowBytes;
constexpr size_t kBlockBytes = 2 * kHeads * kAreaBytes;

/// A job over blocks in descending order, keys and values of a head side by side.
class ChunkTest : public ::testing::Test {
 protected:
  ChunkTest() : memory_(kBlockBytes * 64), blocks_(64) {
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);
  }
  DecodeJob Job(int begin, int end) const {
    DecodeJob job = {};
    job.num_heads = kHeads;
    job.row_bytes = kRowBytes;
    job.keys = {memory_.data(), kBlockBytes, 2 * kAreaBytes, blocks_.data(), kSlots, 0};
    job.values = job.keys;
    job.values.base += kAreaBytes;
    job.begin = begin;
    job.end = end;
    return job;
  }
  const std::byte* Area(int slot, int head) const {
    return memory_.data() + blocks_[slot / kSlots] * kBlockBytes + head * 2 * kAreaBytes;
  }

  std::vector<std::byte> memory_;
  std::vector<uint32_t> blocks_;
};

/// A place that outlives the step it is of.
struct Place {
  const DecodeJob* job;
  int begin, count, head;

  explicit Place(const HeadChunk& of)
      : job(of.chunk->job), begin(of.begin()), count(of.count()), head(of.head) {}
  bool operator==(const Place&) const = default;
};

struct Places {
  std::vector<Place> here, next;
};
Places StepsOf(const DecodeJob& job) {
  Places places;
  ForEachHeadStep(job, [&](const HeadStep& step) {
    places.here.emplace_back(step.here);
    places.next.emplace_back(step.next);
  });
  return places;
}

TEST_F(ChunkTest, TakesEveryHeadOfEveryChunk) {
  const DecodeJob job = Job(5, 400);
  const Places places = StepsOf(job);
  ASSERT_EQ(places.here.size(), 4u * kHeads);
  int slot = 5;
  for (size_t i = 0; i < places.here.size(); ++i) {
    const Place& here = places.here[i];
    EXPECT_EQ(here.job, &job);
    EXPECT_EQ(here.head, static_cast<int>(i) % kHeads);
    EXPECT_EQ(here.begin, slot);
    EXPECT_EQ(here.count, i / kHeads < 3 ? kChunk : 400 - 5 - 3 * kChunk);
    if (here.head == kHeads - 1) slot += here.count;
  }
  EXPECT_EQ(slot, 400);
}

TEST_F(ChunkTest, LooksAheadToTheNextStep) {
  const DecodeJob job = Job(0, 300);
  const Places places = StepsOf(job);
  for (size_t i = 0; i + 1 < places.here.size(); ++i) {
    EXPECT_EQ(places.next[i], places.here[i + 1]) << i;
  }
  EXPECT_EQ(places.next.back(), places.here.back());
}

TEST_F(ChunkTest, LooksAheadToTheFollowingJobIfItLiesAlike) {
  DecodeJob job = Job(0, 200);
  DecodeJob following = Job(48, 100);
  job.following = &following;
  const Place next = StepsOf(job).next.back();
  EXPECT_EQ(next.job, &following);
  EXPECT_EQ(next.begin, 48);
  EXPECT_EQ(next.count, 52);
  EXPECT_EQ(next.head, 0);

  following.row_bytes /= 2;
  const Places places = StepsOf(job);
  EXPECT_EQ(places.next.back(), places.here.back());
}

TEST_F(ChunkTest, FindsRowsAndAreas) {
  const DecodeJob job = Job(5, 205);
  ForEachHeadStep(job, [&](const HeadStep& step) {
    const HeadChunk& here = step.here;
    for (int t = 0; t < kChunk; ++t) {
      const int slot = here.begin() + (t < here.count() ? t : here.count() - 1);
      EXPECT_EQ(here.chunk->rows[t], Area(slot, 0) + kAreaBytes + slot % kSlots * kRowBytes);
      EXPECT_EQ(here.AreaAt(&DecodeJob::keys, t, nullptr),
                t < here.count() ? Area(slot, here.head) : nullptr);
    }
    int slots = 0;
    step.ForEachRun(&DecodeJob::keys, [&](int t, int run, int slot, const std::byte* area,
                                          const std::byte* ahead) {
      EXPECT_EQ(t, slots);
      EXPECT_EQ(slot, static_cast<int>((here.begin() + t) % kSlots));
      EXPECT_EQ(area, Area(here.begin() + t, here.head));
      EXPECT_EQ(ahead, t < step.next.count() ? Area(step.next.begin() + t, step.next.head) : area);
      slots += run;
    });
    EXPECT_EQ(slots, here.count());
  });
}

TEST_F(ChunkTest, FindsTilesOfSixteenSlots) {
  const DecodeJob job = Job(32, 32 + kChunk + 40);
  ForEachHeadStep(job, [&](const HeadStep& step) {
    const HeadChunk& here = step.here;
    EXPECT_EQ(here.num_tiles(), here.count() == kChunk ? kMostTiles : 3);
    for (int i = 0; i < kMostTiles; ++i) {
      const int slot = here.begin() + std::min(i, here.num_tiles() - 1) * kTileSlots;
      EXPECT_EQ(here.TileAt(&Chunk::keys, i), Area(slot, here.head));
      EXPECT_EQ(here.TileAt(&Chunk::values, i), Area(slot, here.head) + kAreaBytes);
    }
  });
}

TEST_F(ChunkTest, FindsTilesWithinBlocks) {
  DecodeJob job = Job(16, 16 + kChunk);
  job.keys.slots_per_block = job.values.slots_per_block = 48;
  ForEachHeadStep(job, [&](const HeadStep& step) {
    const HeadChunk& here = step.here;
    for (int i = 0; i < kMostTiles; ++i) {
      const int slot = 16 + i * kTileSlots;
      const std::byte* const area = memory_.data() + blocks_[slot / 48] * kBlockBytes +
                                    static_cast<size_t>(here.head) * 2 * kAreaBytes;
      EXPECT_EQ(here.TileAt(&Chunk::keys, i), area + slot % 48 * 4);
      EXPECT_EQ(here.TileAt(&Chunk::key_lines, i), area + slot % 48 * kRowBytes);
      EXPECT_EQ(here.TileAt(&Chunk::values, i), area + kAreaBytes + slot % 48 * kRowBytes);
    }
  });
}

TEST_F(ChunkTest, FindsUnitsOfGroups) {
  constexpr int kUnit = 24, kBlockSlots = 128;
  DecodeJob job = Job(64, 64 + 100);
  job.code_group = 32;
  job.key_scales = job.keys;
  job.key_scales.slots_per_block = kBlockSlots;
  job.key_scales.unit_bytes = kUnit;
  job.value_scales = job.key_scales;
  job.value_scales.base += kAreaBytes;
  ForEachHeadStep(job, [&](const HeadStep& step) {
    const HeadChunk& here = step.here;
    for (int i = 0; i < here.num_tiles(); ++i) {
      const int slot = here.begin() + i * kTileSlots;
      const std::byte* const area = memory_.data() + blocks_[slot / kBlockSlots] * kBlockBytes +
                                    static_cast<size_t>(here.head) * 2 * kAreaBytes;
      const std::byte* const unit = area + slot % kBlockSlots / 32 * kUnit;
      EXPECT_EQ(here.TileAt(&Chunk::key_units, i), unit);
      EXPECT_EQ(here.TileAt(&Chunk::value_units, i), unit + kAreaBytes);
    }
  });
}

TEST_F(ChunkTest, ReadsAlongBlocksOnlyWhereHeadsFollowEachOther) {
  const auto with = [this](auto change) {
    DecodeJob job = Job(0, 400);
    change(job);
    return BytesAlongBlock(job);
  };
  EXPECT_EQ(with([](DecodeJob&) {}), kAreaBytes);
  const auto rows = [](DecodeJob& job, size_t bytes) {
    job.row_bytes = bytes;
    job.values.base = job.keys.base + kSlots * bytes;
    job.keys.head_stride = job.values.head_stride = 2 * kSlots * bytes;
  };
  EXPECT_EQ(with([&](DecodeJob& job) { rows(job, 64); }), 1024u);
  EXPECT_EQ(with([&](DecodeJob& job) { rows(job, 128); }), 2048u);
  EXPECT_EQ(with([&](DecodeJob& job) { rows(job, 512); }), 2048u);
  EXPECT_EQ(with([](DecodeJob& job) { job.values.base += 64; }), 0u);
  EXPECT_EQ(with([](DecodeJob& job) { job.keys.head_stride += 64; }), 0u);
  EXPECT_EQ(with([](DecodeJob& job) { job.keys.blocks = nullptr; }), 0u);
  EXPECT_EQ(with([](DecodeJob& job) { job.values = {}; }), 0u);
  // A chunk begins within a block.
  const auto slots = [&](uint32_t per_block) {
    return with([=](DecodeJob& job) {
      job.keys.slots_per_block = job.values.slots_per_block = per_block;
      job.values.base = job.keys.base + per_block * kRowBytes;
      job.keys.head_stride = job.values.head_stride = 2 * per_block * kRowBytes;
    });
  };
  EXPECT_EQ(slots(8), 8 * kRowBytes);
  EXPECT_EQ(slots(12), 0u);
  // A block whose tiles are read side by side.
  EXPECT_EQ(slots(32), 0u);
}

// Every line is fetched before it is read, but for those that a job begins with, and nothing else
// is, but behind the end of a job that none follows.
TEST_F(ChunkTest, FetchesEveryLineAlongItsBlock) {
  for (size_t row_bytes : {64, 128, 256}) {
    for (int chunks : {1, 3}) {
      SCOPED_TRACE(row_bytes);
      SCOPED_TRACE(chunks);
      const size_t area = kSlots * row_bytes;
      std::vector<std::byte> memory(64 * kHeads * 2 * area);
      DecodeJob job = Job(0, chunks * kChunk);
      job.row_bytes = row_bytes;
      job.keys = {memory.data(), kHeads * 2 * area, 2 * area, blocks_.data(), kSlots, 0};
      job.values = job.keys;
      job.values.base += area;
      const size_t distance = BytesAlongBlock(job);
      ASSERT_EQ(distance, std::min<size_t>(area, 2048));
      std::set<const std::byte*> read, fetched, not_fetched;
      const auto take = [&](const std::byte* line, const std::byte* ahead) {
        if (fetched.count(line) == 0) not_fetched.insert(line);
        read.insert(line);
        fetched.insert(ahead);
      };
      ForEachHeadStep(job, [&](const HeadStep& step) {
        const HeadChunk& here = step.here;
        const Reading<ReadOrder::kAlongBlocks> reading(step);
        for (int i = 0; i < here.num_tiles(); ++i) {
          const std::byte* const lines = here.TileAt(&Chunk::key_lines, i);
          const std::byte* const ahead = reading.AfterKeys(lines, nullptr);
          for (size_t at = 0; at < area; at += 64) take(lines + at, ahead + at);
        }
        const ValueRows values = reading.Values();
        for (int t = 0; t < here.count(); ++t) {
          const int slot = t % kSlots;
          const bool behind = values.slots_ahead >= 0 && slot >= values.slots_ahead;
          const ValueRows& of_slot = behind ? values.After() : values;
          for (size_t at = 0; at < row_bytes; at += 64) {
            take(values.at(t, at), of_slot.ahead(t, at));
          }
        }
      });
      const size_t lines_of_chunk = kChunk * kHeads * 2 * row_bytes / 64;
      EXPECT_EQ(read.size(), chunks * lines_of_chunk);
      EXPECT_EQ(not_fetched.size(), kChunk / kSlots * distance / 64);
      for (const std::byte* line : not_fetched) {
        EXPECT_LT(static_cast<size_t>(line - memory.data()) % job.keys.block_bytes, distance);
      }
      // Behind the end the last head's keys are fetched again.
      for (const std::byte* line : fetched) EXPECT_EQ(read.count(line), 1u);
    }
  }
}

TEST_F(ChunkTest, NeedsNoValues) {
  DecodeJob job = Job(0, 150);
  job.values = {};
  EXPECT_EQ(StepsOf(job).here.size(), 2u * kHeads);
}

}  // namespace
}  // namespace ziggurat::cpu

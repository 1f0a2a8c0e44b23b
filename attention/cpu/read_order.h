// What decode attention of plain numbers fetches, and when, in each ReadOrder (fetch.h).
//
//   Reading<kOrder>
//     Takes(job)       whether a job can be read so
//     AfterKeys(step, t, lines, next_lines)
//                      lines that are fetched with those of a tile of keys, which are `lines` and
//                      have the slots from `t` on; next_lines: the ones in their place of the next
//                      head
//     ValuesOf(step)   the values of the step's head, and what is fetched with each
//     Ahead            made of each step; its Turn is called in softmax, about once a query
#pragma once

#include "attention/cpu/chunk.h"
#include "attention/cpu/fetch.h"
#include "attention/cpu/value_tiles.h"

namespace ziggurat::cpu {
namespace {

/// For formats that fetch what comes next while they read.
struct NothingAhead {
  explicit NothingAhead(const HeadStep& /*step*/) {}
  void Turn() {}
};

template <ReadOrder kOrder>
struct Reading;

// ---- kWholeChunk -------------------------------------------------------------------------------

template <>
struct Reading<ReadOrder::kWholeChunk> {
  using Ahead = NothingAhead;

  static bool Takes(const DecodeJob& /*job*/) { return true; }
  static const std::byte* AfterKeys(const HeadStep& /*step*/, int /*t*/, const std::byte* /*lines*/,
                                    const std::byte* next_lines) {
    return next_lines;
  }
  static ValueRows ValuesOf(const HeadStep& step) {
    const DecodeJob &job = step.here.job(), &next = step.next.job();
    ValueRows values = {step.here.chunk->rows, step.here.head * job.values.head_stride};
    values.per_block = static_cast<int>(job.values.slots_per_block);
    values.rows_ahead = step.next.chunk->rows;
    values.offset_ahead = static_cast<ptrdiff_t>(step.next.head * next.values.head_stride);
    values.row_bytes = job.row_bytes;
    return values;
  }
};

/// The same, with the next head's keys fetched in place of its values, where they lie alike.
inline ValueRows ValuesBeforeKeys(const HeadStep& step) {
  ValueRows values = Reading<ReadOrder::kWholeChunk>::ValuesOf(step);
  const DecodeJob& next = step.next.job();
  if (KeysLieAsValues(next)) values.offset_ahead += next.keys.base - next.values.base;
  return values;
}

// ---- kAlongBlocks ------------------------------------------------------------------------------

/// How far ahead in its block of what is read lines are fetched; no further than what a head's
/// values take. 0: of a job that cannot be read so.
inline size_t DistanceAhead(const DecodeJob& job) {
  // What is under way from all blocks of a chunk is a third of a first-level cache of 48 KiB.
  constexpr size_t kMostBytes = 2048;
  const size_t area = job.keys.slots_per_block * job.row_bytes;
  const bool follow_each_other = KeysLieAsValues(job) && job.values.base == job.keys.base + area &&
                                 job.keys.head_stride == 2 * area;
  if (!follow_each_other || kChunk % job.keys.slots_per_block != 0) return 0;
  return area < kMostBytes ? area : kMostBytes;
}

template <>
struct Reading<ReadOrder::kAlongBlocks> {
  /// A line that two rows of a narrow tile share is fetched twice, for which one query alone leaves
  /// no time.
  static bool Takes(const DecodeJob& job) {
    return DistanceAhead(job) > 0 && (job.group_size > 1 || job.keys.slots_per_block >= kTileSlots);
  }
  static const std::byte* AfterKeys(const HeadStep& step, int /*t*/, const std::byte* lines,
                                    const std::byte* /*next_lines*/) {
    return lines + DistanceAhead(step.here.job());
  }
  /// Behind the values of the last head, who is in which block is another matter.
  static ValueRows ValuesOf(const HeadStep& step) {
    ValueRows values = ValuesBeforeKeys(step);
    const DecodeJob& job = step.here.job();
    const ptrdiff_t distance = DistanceAhead(job),
                    area = job.values.slots_per_block * job.row_bytes;
    if (step.next.head != step.here.head + 1) {
      values.slots_ahead = static_cast<int>((area - distance) / job.row_bytes);
      values.rows_after = values.rows_ahead;
      values.offset_after = values.offset_ahead + distance - area;
    }
    values.rows_ahead = values.rows;
    values.offset_ahead = static_cast<ptrdiff_t>(values.offset) + distance;
    return values;
  }

  /// A line of each tile behind those that were fetched with the keys: memory would be idle.
  class Ahead {
   public:
    explicit Ahead(const HeadStep& step) : tiles_(step.here.num_tiles()) {
      const DecodeJob& job = step.here.job();
      const size_t distance = DistanceAhead(job);
      const bool are_values = distance < job.values.slots_per_block * job.row_bytes;
      for (int i = 0; i < tiles_; ++i) {
        lines_[i] = are_values ? step.here.TileAt(&Chunk::values, i) + distance
                               : step.next.TileAt(&Chunk::key_lines, i);
      }
    }
    /// Always inlined: GCC drops calls of what only prefetches.
    __attribute__((always_inline)) void Turn() {
      for (int i = 0; i < tiles_; ++i) Prefetch<ReadOrder::kAlongBlocks>(lines_[i] + at_);
      at_ += 64;
    }

   private:
    int tiles_;
    const std::byte* lines_[kMostTiles];
    size_t at_ = 0;
  };
};

// ---- kFewBlocks --------------------------------------------------------------------------------

/// How many tiles are read side by side, while the lines of as many are fetched. The tiles of a
/// head are in one order: those of its keys, those of its values, and then the next head's. 0: of a
/// job that cannot be read so.
inline int TilesAtOnce(const DecodeJob& job) {
  if (!KeysLieAsValues(job)) return 0;
  // What is read and what is fetched stay in a first-level cache of 48 KiB: 32 KiB, or 16 where
  // eight queries, their scores and sums take more of it, and read no more than two tiles at once.
  const size_t tile_bytes = kTileSlots * job.row_bytes;
  const bool has_many_queries = job.group_size >= kMaxQueries;
  const size_t most_bytes = has_many_queries ? 8 << 10 : 16 << 10;
  const int tiles = 4 * tile_bytes <= most_bytes                       ? 4
                    : has_many_queries && 2 * tile_bytes <= most_bytes ? 2
                                                                       : 0;
  const int slots = tiles * kTileSlots;
  const bool are_whole_blocks = slots > 0 && job.keys.slots_per_block % kTileSlots == 0 &&
                                slots % job.keys.slots_per_block == 0 && job.begin % slots == 0;
  return are_whole_blocks ? tiles : 0;
}

template <>
struct Reading<ReadOrder::kFewBlocks> {
  static bool Takes(const DecodeJob& job) { return TilesAtOnce(job) > 0; }
  static const std::byte* AfterKeys(const HeadStep& step, int t, const std::byte* /*lines*/,
                                    const std::byte* /*next_lines*/) {
    const int tiles = TilesAtOnce(step.here.job()), num_tiles = step.here.num_tiles();
    const int i = t / kTileSlots, of_values = i + Smaller(tiles, num_tiles) - num_tiles;
    return of_values < 0 ? step.here.TileAt(&Chunk::key_lines, i + tiles)
                         : step.here.TileAt(&Chunk::values, of_values);
  }
  static ValueRows ValuesOf(const HeadStep& step) {
    ValueRows values = ValuesBeforeKeys(step);
    values.at_once = TilesAtOnce(step.here.job()) * kTileSlots;
    return values;
  }

  /// The first lines of the second few of the values: memory would be idle.
  class Ahead {
   public:
    explicit Ahead(const HeadStep& step) : count_(TilesAtOnce(step.here.job())) {
      if (step.here.num_tiles() < 2 * count_) return;
      for (int i = 0; i < count_; ++i) tiles_[i] = step.here.TileAt(&Chunk::values, count_ + i);
      end_ = kTileSlots * step.here.job().row_bytes;
    }
    /// A few lines of each tile. Always inlined: GCC drops calls of what only prefetches.
    __attribute__((always_inline)) void Turn() {
      if (at_ >= end_) return;
      for (int i = 0; i < count_; ++i) Prefetch<ReadOrder::kFewBlocks>(tiles_[i] + at_, kBytes);
      at_ += kBytes;
    }

   private:
    static constexpr size_t kBytes = 512;

    int count_;
    const std::byte* tiles_[4];
    size_t at_ = 0;
    size_t end_ = 0;
  };
};

}  // namespace
}  // namespace ziggurat::cpu

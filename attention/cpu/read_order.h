// What decode attention of plain numbers fetches, and when, in each ReadOrder (fetch.h).
//
//   Reading<kOrder>  of one step
//     Takes(job)     whether a job can be read so (static)
//     AfterKeys(t, lines, next_lines)
//                    lines that are fetched with those of a tile of keys, which are `lines` and
//                    have the slots from `t` on; next_lines: the ones in their place of the next
//                    head
//     Values()       the values of the step's head, and what is fetched with each
//     Turn()         called in softmax, about once a query: fetches a little
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

/// The values of a step's head; those of the next head are fetched in their place.
inline ValueRows ValuesOf(const HeadStep& step) {
  const DecodeJob &job = step.here.job(), &next = step.next.job();
  ValueRows values = {step.here.chunk->rows, step.here.head * job.values.head_stride};
  values.per_block = static_cast<int>(job.values.slots_per_block);
  values.rows_ahead = step.next.chunk->rows;
  values.offset_ahead = static_cast<ptrdiff_t>(step.next.head * next.values.head_stride);
  values.row_bytes = job.row_bytes;
  return values;
}

/// The same, with the next head's keys fetched in place of its values, where they lie alike.
inline ValueRows ValuesBeforeKeys(const HeadStep& step) {
  ValueRows values = ValuesOf(step);
  const DecodeJob& next = step.next.job();
  if (KeysLieAsValues(next)) values.offset_ahead += next.keys.base - next.values.base;
  return values;
}

template <ReadOrder kOrder>
class Reading;

// ---- kWholeChunk -------------------------------------------------------------------------------

template <>
class Reading<ReadOrder::kWholeChunk> {
 public:
  explicit Reading(const HeadStep& step) : step_(step) {}

  static bool Takes(const DecodeJob& /*job*/) { return true; }
  const std::byte* AfterKeys(int /*t*/, const std::byte* /*lines*/,
                             const std::byte* next_lines) const {
    return next_lines;
  }
  ValueRows Values() const { return ValuesOf(step_); }
  void Turn() {}

 private:
  const HeadStep& step_;
};

// ---- kAlongBlocks ------------------------------------------------------------------------------

/// How many bytes ahead in its block of what is read lines are fetched; no further than what a
/// head's values take. 0: of a job that cannot be read so.
inline size_t BytesAlongBlock(const DecodeJob& job) {
  // What is under way from the blocks of a chunk is a third of a first-level cache of 48 KiB, or
  // two thirds with blocks of 8 slots.
  constexpr size_t kMostBytes = 2048;
  const size_t area_bytes = job.keys.slots_per_block * job.row_bytes;
  const bool follow_each_other = KeysLieAsValues(job) &&
                                 job.values.base == job.keys.base + area_bytes &&
                                 job.keys.head_stride == 2 * area_bytes;
  // The tiles of a larger block are read side by side, so that it is not one run.
  const bool are_runs =
      job.keys.slots_per_block <= kTileSlots && kChunk % job.keys.slots_per_block == 0;
  if (!follow_each_other || !are_runs) return 0;
  return area_bytes < kMostBytes ? area_bytes : kMostBytes;
}

template <>
class Reading<ReadOrder::kAlongBlocks> {
 public:
  explicit Reading(const HeadStep& step)
      : step_(step),
        distance_bytes_(BytesAlongBlock(step.here.job())),
        tiles_(step.here.num_tiles()) {
    const DecodeJob& job = step.here.job();
    const bool are_values = distance_bytes_ < job.values.slots_per_block * job.row_bytes;
    for (int i = 0; i < tiles_; ++i) {
      lines_[i] = are_values ? step.here.TileAt(&Chunk::values, i) + distance_bytes_
                             : step.next.TileAt(&Chunk::key_lines, i);
    }
  }

  /// A line that two rows of a narrow tile share is fetched twice, for which one query alone leaves
  /// no time.
  static bool Takes(const DecodeJob& job) {
    return BytesAlongBlock(job) > 0 &&
           (job.group_size > 1 || job.keys.slots_per_block == kTileSlots);
  }
  const std::byte* AfterKeys(int /*t*/, const std::byte* lines,
                             const std::byte* /*next_lines*/) const {
    return lines + distance_bytes_;
  }
  /// Behind the values of the last head, who is in which block is another matter.
  ValueRows Values() const {
    ValueRows values = ValuesBeforeKeys(step_);
    const DecodeJob& job = step_.here.job();
    const ptrdiff_t distance = distance_bytes_, area = job.values.slots_per_block * job.row_bytes;
    if (step_.next.head != step_.here.head + 1) {
      values.slots_ahead = static_cast<int>((area - distance) / job.row_bytes);
      values.rows_after = values.rows_ahead;
      values.offset_after = values.offset_ahead + distance - area;
    }
    values.rows_ahead = values.rows;
    values.offset_ahead = static_cast<ptrdiff_t>(values.offset) + distance;
    return values;
  }
  /// A line of each tile behind those that were fetched with the keys: memory would be idle. Always
  /// inlined: GCC drops calls of what only prefetches.
  __attribute__((always_inline)) void Turn() {
    for (int i = 0; i < tiles_; ++i) Prefetch<ReadOrder::kAlongBlocks>(lines_[i] + at_);
    at_ += 64;
  }

 private:
  const HeadStep& step_;
  size_t distance_bytes_;
  int tiles_;
  const std::byte* lines_[kMostTiles];
  size_t at_ = 0;
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
class Reading<ReadOrder::kFewBlocks> {
 public:
  explicit Reading(const HeadStep& step) : step_(step), count_(TilesAtOnce(step.here.job())) {
    if (step.here.num_tiles() < 2 * count_) return;
    for (int i = 0; i < count_; ++i) tiles_[i] = step.here.TileAt(&Chunk::values, count_ + i);
    end_ = kTileSlots * step.here.job().row_bytes;
  }

  static bool Takes(const DecodeJob& job) { return TilesAtOnce(job) > 0; }
  const std::byte* AfterKeys(int t, const std::byte* /*lines*/,
                             const std::byte* /*next_lines*/) const {
    const int num_tiles = step_.here.num_tiles();
    const int i = t / kTileSlots, of_values = i + Smaller(count_, num_tiles) - num_tiles;
    return of_values < 0 ? step_.here.TileAt(&Chunk::key_lines, i + count_)
                         : step_.here.TileAt(&Chunk::values, of_values);
  }
  ValueRows Values() const {
    ValueRows values = ValuesBeforeKeys(step_);
    values.at_once = count_ * kTileSlots;
    return values;
  }
  /// A few lines of each tile of the second few of the values: memory would be idle. Always
  /// inlined: GCC drops calls of what only prefetches.
  __attribute__((always_inline)) void Turn() {
    if (at_ >= end_) return;
    for (int i = 0; i < count_; ++i) Prefetch<ReadOrder::kFewBlocks>(tiles_[i] + at_, kBytes);
    at_ += kBytes;
  }

 private:
  static constexpr size_t kBytes = 512;

  const HeadStep& step_;
  int count_;
  const std::byte* tiles_[4];
  size_t at_ = 0;
  size_t end_ = 0;
};

}  // namespace
}  // namespace ziggurat::cpu

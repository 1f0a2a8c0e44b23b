// What decode attention of plain numbers fetches, and when, in each ReadOrder (fetch.h).
//
//   Reading<kOrder>  of one step
//     Takes(job)     whether a job can be read so (static)
//     AfterKeys(lines, next_lines)
//                    lines that are fetched with those of a tile of keys, which are `lines`;
//                    next_lines: the ones in their place of the next head
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

template <ReadOrder kOrder>
class Reading;

// ---- kWholeChunk -------------------------------------------------------------------------------

template <>
class Reading<ReadOrder::kWholeChunk> {
 public:
  explicit Reading(const HeadStep& step) : step_(step) {}

  static bool Takes(const DecodeJob& /*job*/) { return true; }
  const std::byte* AfterKeys(const std::byte* /*lines*/, const std::byte* next_lines) const {
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
  // The tiles of a larger block are read side by side, not one after the other.
  const bool are_small =
      job.keys.slots_per_block <= kTileSlots && kChunk % job.keys.slots_per_block == 0;
  if (!follow_each_other || !are_small) return 0;
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
  const std::byte* AfterKeys(const std::byte* lines, const std::byte* /*next_lines*/) const {
    return lines + distance_bytes_;
  }
  /// Behind the values of the last head, who is in which block is another matter.
  ValueRows Values() const {
    ValueRows values = ValuesOf(step_);
    const DecodeJob &job = step_.here.job(), &next = step_.next.job();
    if (KeysLieAsValues(next)) values.offset_ahead += next.keys.base - next.values.base;
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

}  // namespace
}  // namespace ziggurat::cpu

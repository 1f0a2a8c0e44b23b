// The slots that decode attention takes at a time, and the order in which it reads what they hold.
//
// A core gets most out of memory when it reads several runs of addresses at once, each in order,
// and asks early. Block tables jump about the pool, so all this is arranged here: a job takes
// several KV heads, whose areas of a block are contiguous; the blocks of a chunk are read side by
// side, a line or a row of each after the other; and with every line, one that will be needed later
// is fetched: in the next head or further on in its block (ReadOrder, fetch.h).
#pragma once

#include "attention/cpu/fetch.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Calls body(t, run, slot, area) for the runs of slots [begin, begin + count) that lie in one
/// block each: from `slot` on, in the area of head `head`.   t  where the run begins, from `begin`
/// on
template <class Body>
inline void ForEachRun(const HeadBlocks& plane, int head, int begin, int count, Body body) {
  const int slots = static_cast<int>(plane.slots_per_block);
  int block = begin / slots, slot = begin % slots;
  for (int t = 0; t < count; ++block, slot = 0) {
    const int run = Smaller(count - t, slots - slot);
    body(t, run, slot,
         plane.base + plane.blocks[block] * plane.block_bytes + head * plane.head_stride);
    t += run;
  }
}

/// Slots of a chunk that are found together.
constexpr int kTileSlots = 16;
constexpr int kMostTiles = kChunk / kTileSlots;

/// Where the first and then every 16th slot of a chunk lies in a plane.
struct Tiles {
  const std::byte* of[kMostTiles];  ///< the first head's; those behind the last slot are the last's
  size_t head_stride;
};

/// Slots [begin, begin + count) of a job.
struct Chunk {
  const DecodeJob* job;
  int begin;
  int count;
  Tiles keys;    ///< first cells
  Tiles values;  ///< rows; those of values only of a job that has any
  /// The lines of as many keys, if those of a block's slots lay one after the other: together all
  /// lines of its keys. To be fetched.
  Tiles key_lines;
  /// Of grouped codes: units of the groups that the slots belong to.
  Tiles key_units, value_units;
  /// The first head's values; those behind `count` are the last one's. Of a job with values.
  const std::byte* rows[kChunk];

  void Set(const DecodeJob& of, int first_slot) {
    job = &of;
    begin = first_slot;
    count = Smaller(kChunk, of.end - first_slot);
    const auto cell = [](int slot) { return size_t{4} * slot; };
    const auto row = [bytes = of.row_bytes](int slot) { return bytes * slot; };
    const auto unit = [group = of.code_group](const HeadBlocks& plane) {
      return [=, bytes = plane.unit_bytes](int slot) { return size_t{bytes} * (slot / group); };
    };
    Find(of.keys, cell, &keys);
    Find(of.keys, row, &key_lines);
    if (of.code_group > 0) Find(of.key_scales, unit(of.key_scales), &key_units);
    if (of.values.blocks == nullptr) return;
    Find(of.values, row, &values);
    if (of.code_group > 0) Find(of.value_scales, unit(of.value_scales), &value_units);
    ForEachRun(of.values, /*head=*/0, begin, count,
               [&](int t, int run, int slot, const std::byte* area) {
                 for (int s = 0; s < run; ++s) rows[t + s] = area + (slot + s) * of.row_bytes;
               });
    for (int t = count; t < kChunk; ++t) rows[t] = rows[count - 1];
  }

 private:
  /// offset_of(slot)  of a slot of a block, in the area of a head
  template <class OffsetOf>
  void Find(const HeadBlocks& plane, OffsetOf offset_of, Tiles* tiles) const {
    const int slots = static_cast<int>(plane.slots_per_block);
    int block = begin / slots, slot = begin % slots;
    const std::byte* tile = nullptr;
    for (int i = 0; i < kMostTiles; ++i, slot += kTileSlots) {
      if (i * kTileSlots < count) {
        for (; slot >= slots; slot -= slots) ++block;
        tile = plane.base + plane.blocks[block] * plane.block_bytes + offset_of(slot);
      }
      tiles->of[i] = tile;
    }
    tiles->head_stride = plane.head_stride;
  }
};

/// What one head holds of a chunk.
struct HeadChunk {
  const Chunk* chunk;
  int head;

  const DecodeJob& job() const { return *chunk->job; }
  int begin() const { return chunk->begin; }
  int count() const { return chunk->count; }

  /// The head's area in the block of the plane that slot begin + t lies in, or `otherwise` where
  /// there is no such slot.
  const std::byte* AreaAt(HeadBlocks DecodeJob::*plane, int t, const std::byte* otherwise) const {
    const HeadBlocks& blocks = job().*plane;
    if (t >= count() || blocks.blocks == nullptr) return otherwise;
    return blocks.base +
           blocks.blocks[(begin() + t) / blocks.slots_per_block] * blocks.block_bytes +
           head * blocks.head_stride;
  }
  /// Its tile `i`.
  const std::byte* TileAt(Tiles Chunk::*plane, int i) const {
    const Tiles& tiles = chunk->*plane;
    return tiles.of[i] + head * tiles.head_stride;
  }
  int num_tiles() const { return (count() + kTileSlots - 1) / kTileSlots; }
};

/// Where a head is being read, and what is read next. That is the same at the end of all.
struct HeadStep {
  HeadChunk here;
  HeadChunk next;

  /// ForEachRun over `here`, with the area of `next` that stands in the place of each: body(t, run,
  /// slot, area, ahead).
  template <class Body>
  void ForEachRun(HeadBlocks DecodeJob::*plane, Body body) const {
    cpu::ForEachRun(here.job().*plane, here.head, here.begin(), here.count(),
                    [&](int t, int run, int slot, const std::byte* area) {
                      body(t, run, slot, area, next.AreaAt(plane, t, area));
                    });
  }
};

/// Whether what one job holds lies in its blocks as the other's does.
inline bool LieAlike(const DecodeJob& a, const DecodeJob& b) {
  return a.row_bytes == b.row_bytes && a.code_group == b.code_group &&
         a.keys.slots_per_block == b.keys.slots_per_block &&
         a.values.slots_per_block == b.values.slots_per_block;
}

/// Whether a key's line and its value are as far apart in one slot as in any other.
inline bool KeysLieAsValues(const DecodeJob& job) {
  return job.keys.blocks == job.values.blocks && job.keys.block_bytes == job.values.block_bytes &&
         job.keys.slots_per_block == job.values.slots_per_block &&
         job.keys.head_stride == job.values.head_stride;
}

/// Calls body(step) for all chunks of the job, and for each of them for all heads.
template <class Body>
inline void ForEachHeadStep(const DecodeJob& job, Body body) {
  Chunk chunks[2];
  Chunk *chunk = &chunks[0], *after = &chunks[1];
  chunk->Set(job, job.begin);
  for (int begin = job.begin; begin < job.end; begin += kChunk) {
    const DecodeJob* const following = job.following;
    if (begin + kChunk < job.end) {
      after->Set(job, begin + kChunk);
    } else if (following != nullptr && LieAlike(job, *following)) {
      after->Set(*following, following->begin);
    } else {
      after = chunk;
    }
    for (int head = 0; head < job.num_heads; ++head) {
      HeadStep step = {{chunk, head}, {chunk, head + 1}};
      if (head + 1 == job.num_heads) step.next = {after, after == chunk ? head : 0};
      body(step);
    }
    Chunk* const done = chunk;
    chunk = after;
    after = done;
  }
}

}  // namespace
}  // namespace ziggurat::cpu

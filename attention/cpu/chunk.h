// The slots that decode attention takes at a time, and the order in which it reads what they hold.
//
// A core gets most out of memory when it reads several runs of addresses at once, each in order,
// and asks early. Block tables jump about the pool, so all this is arranged here: a job takes
// several KV heads, whose areas of a block are contiguous; the blocks of a chunk are read side by
// side, a line or a row of each after the other; and with every line, one that the next head will
// need is fetched.
#pragma once

#include <xmmintrin.h>

#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

/// Fetches into L2. Always inlined: GCC drops calls of what only prefetches.
__attribute__((always_inline)) inline void Prefetch(const std::byte* p, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + line), _MM_HINT_T1);
  }
}

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

/// Slots [begin, begin + count) of a job.
struct Chunk {
  const DecodeJob* job;
  int begin;
  int count;
  /// The first head's values; those behind `count` are the last one's. Of a job with values.
  const std::byte* rows[kChunk];

  void Set(const DecodeJob& of, int first_slot) {
    job = &of;
    begin = first_slot;
    count = Smaller(kChunk, of.end - first_slot);
    if (of.values.blocks == nullptr) return;
    ForEachRun(of.values, /*head=*/0, begin, count,
               [&](int t, int run, int slot, const std::byte* area) {
                 for (int s = 0; s < run; ++s) rows[t + s] = area + (slot + s) * of.row_bytes;
               });
    for (int t = count; t < kChunk; ++t) rows[t] = rows[count - 1];
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
  /// In it, as many bytes further as the slots before that one have: where the slots from there on
  /// begin if they are values, or keys of a whole block.
  const std::byte* RunAt(HeadBlocks DecodeJob::*plane, int t, const std::byte* otherwise) const {
    const std::byte* const area = AreaAt(plane, t, otherwise);
    if (area == otherwise) return otherwise;
    return area + (begin() + t) % (job().*plane).slots_per_block * job().row_bytes;
  }
};

/// Of a chunk that begins with a whole tile of 16 slots, in blocks of whole ones.
constexpr int kMostKeyTiles = kChunk / 16;
/// The first rows of all tiles of keys. Returns how many.
inline int FindKeyTiles(const HeadChunk& here, const std::byte* (&tiles)[kMostKeyTiles]) {
  int count = 0;
  ForEachRun(here.job().keys, here.head, here.begin(), here.count(),
             [&](int /*t*/, int run, int slot, const std::byte* area) {
               for (const int end = slot + run; slot < end; slot += 16) {
                 tiles[count++] = area + static_cast<size_t>(slot) * 4;
               }
             });
  return count;
}

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

// Fetches the blocks of the next chunk of slots while this one is worked on.
//
// Block tables jump about the pool, so the hardware finds nothing to prefetch beyond the end of a
// head's area or a page. The micro kernels therefore fetch one line of what comes next for each
// line they read, in the order of addresses: what neighbouring heads hold of a block is contiguous,
// and long contiguous runs are what memory delivers fastest.
#pragma once

#include <xmmintrin.h>

#include "attention/cpu/kernels.h"
#include "attention/cpu/vector_math.h"

namespace ziggurat::cpu {
namespace {

class BlockFetcher {
 public:
  static constexpr bool kFetches = true;

  /// Plans to fetch what slots [begin, end) of the job need: of keys and values all blocks that
  /// begin there, and the one that `begin` lies in; of scales and norms just those.
  void Plan(const DecodeJob& job, int begin, int end) {
    num_runs_ = next_ = 0;
    AddScales(job, begin, end);
    const size_t row_bytes = job.row_bytes;
    const bool together = job.keys.blocks == job.values.blocks &&
                          job.keys.slots_per_block == job.values.slots_per_block &&
                          job.keys.base + job.keys.slots_per_block * row_bytes == job.values.base &&
                          job.keys.head_stride == job.values.head_stride &&
                          job.keys.head_stride == 2 * job.keys.slots_per_block * row_bytes;
    AddBlocks(job.keys, job.num_heads, begin, end, job.begin, together ? 2 * row_bytes : row_bytes);
    if (!together) AddBlocks(job.values, job.num_heads, begin, end, job.begin, row_bytes);
  }

  /// The next `bytes` contiguous bytes of the plan for the caller to fetch, or `otherwise` where
  /// nothing is left to fetch. What a run has left beyond whole pieces is fetched here.
  const std::byte* Take(size_t bytes, const std::byte* otherwise) {
    while (next_ < num_runs_) {
      Run& run = runs_[next_];
      if (run.bytes >= bytes) {
        const std::byte* piece = run.begin;
        run.begin += bytes;
        run.bytes -= bytes;
        return piece;
      }
      FetchRun(run);
      ++next_;
    }
    return otherwise;
  }

  /// Fetches all that is left of the plan now.
  void FetchAll() {
    for (; next_ < num_runs_; ++next_) FetchRun(runs_[next_]);
  }

 private:
  struct Run {
    const std::byte* begin;
    size_t bytes;
  };
  static constexpr int kMaxRuns = 256;  // more are left to the hardware

  static void FetchRun(const Run& run) {
    for (size_t i = 0; i < run.bytes; i += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(run.begin + i), _MM_HINT_T1);
    }
  }

  void AddRun(const std::byte* begin, size_t bytes) {
    if (num_runs_ < kMaxRuns) runs_[num_runs_++] = {begin, bytes};
  }

  /// `slot_bytes`: bytes of one slot in a head's area.
  void AddBlocks(const HeadBlocks& plane, int num_heads, int begin, int end, int job_begin,
                 size_t slot_bytes) {
    if (plane.blocks == nullptr) return;
    const int slots = static_cast<int>(plane.slots_per_block);
    const size_t area = slots * slot_bytes;
    const int first = begin == job_begin ? begin / slots : (begin + slots - 1) / slots;
    for (int block = first; block * slots < end; ++block) {
      const std::byte* start = plane.base + plane.blocks[block] * plane.block_bytes;
      const int runs = plane.head_stride == area ? 1 : num_heads;
      for (int i = 0; i < runs; ++i) {
        AddRun(start + i * plane.head_stride, area * (num_heads / runs));
      }
    }
  }

  /// `entry_bytes`: of what `entry_slots` slots of a head share.
  void AddEntries(const HeadBlocks& plane, int num_heads, int begin, int end, int entry_slots,
                  size_t entry_bytes) {
    if (plane.blocks == nullptr) return;
    const int slots = static_cast<int>(plane.slots_per_block);
    for (int slot = begin / entry_slots * entry_slots; slot < end;) {
      const int next = Smaller(end, (slot / slots + 1) * slots);
      const size_t offset = slot % slots / entry_slots * entry_bytes;
      const size_t entries = (next - slot + entry_slots - 1) / entry_slots;
      const std::byte* start = plane.base + plane.blocks[slot / slots] * plane.block_bytes + offset;
      for (int i = 0; i < num_heads; ++i) {
        AddRun(start + i * plane.head_stride, entries * entry_bytes);
      }
      slot = next;
    }
  }

  void AddScales(const DecodeJob& job, int begin, int end) {
    const auto add = [&](const HeadBlocks& plane, int entry_slots, size_t entry_bytes) {
      AddEntries(plane, job.num_heads, begin, end, entry_slots, entry_bytes);
    };
    if (job.code_group > 0) {
      // A unit holds the scales of keys and then those of values, where they are in one block.
      add(job.key_scales, job.code_group, job.key_scales.unit_bytes);
      if (job.value_scales.blocks != job.key_scales.blocks) {
        add(job.value_scales, job.code_group, job.value_scales.unit_bytes);
      }
    } else {
      add(job.key_scales, 1, sizeof(float));
      add(job.value_scales, 1, sizeof(float));
    }
    add(job.key_norms, 1, sizeof(float));
    add(job.value_norms, 1, sizeof(float));
  }

  Run runs_[kMaxRuns];
  int num_runs_ = 0;
  int next_ = 0;
};

}  // namespace
}  // namespace ziggurat::cpu

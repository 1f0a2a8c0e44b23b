// Prefill attention whose distant tokens are attended with another layer's queries and keys (PoD).
//
// Near and distant tokens are attended to apart, each with sums of their own, and put together at
// the end; so it is known there what share of a query's attention the near ones have.
#pragma once

#include "attention/cpu/prefill_kernel.h"

namespace ziggurat::cpu {
namespace {

/// Adds what is in `from` to `into`.
inline void MergeRow(const float* from, const Running& from_running, int floats, float* into,
                     Running* into_running) {
  if (from_running.sum == 0) return;  // nothing; NaN is not
  const float highest =
      from_running.highest > into_running->highest ? from_running.highest : into_running->highest;
  const float into_weight = __builtin_exp2f(into_running->highest - highest);
  const float from_weight = __builtin_exp2f(from_running.highest - highest);
  for (int c = 0; c < floats; ++c) into[c] = into_weight * into[c] + from_weight * from[c];
  into_running->sum = into_weight * into_running->sum + from_weight * from_running.sum;
  into_running->highest = highest;
}

/// Whether the near tokens have at least a share of `skip` in each of `heads` query heads.
inline bool NearSuffices(const Running* near, const Running* distant, int heads, double skip) {
  for (int j = 0; j < heads; ++j) {
    const double gap = static_cast<double>(distant[j].Lse()) - near[j].Lse();
    if (!(1 / (1 + __builtin_exp(gap)) >= skip)) return false;
  }
  return true;
}

template <class Workspace>
void DistantPrefill(const DistantPrefillJob& job) {
  using Values = typename Workspace::Values;
  const typename Workspace::Registers registers;
  const PrefillJob& near_job = job.near;
  const int dim = near_job.head_dim, group = near_job.group_size;
  const int queries = near_job.count * group, end = near_job.first + near_job.count;
  const int sums_stride = AccumulatorFloats<Values>(dim);
  float* scratch = near_job.scratch;
  const Attended near(&scratch, queries, dim), distant(&scratch, queries, dim);
  const ChunkScratch chunk(scratch, dim);
  near.Start<Workspace>(near_job, near_job.q);
  distant.Start<Workspace>(near_job, job.low_q);
  const auto attend = [&](const KeyRange& range, const Attended& state) {
    AttendRange<Workspace>(near_job, range, chunk, state);
  };
  const int band = Larger(job.sinks, near_job.first - job.recent + 1);
  attend({near_job.k, 0, Smaller(job.sinks, end), 0, kAnyDistance}, near);
  attend({near_job.k, band, end, 0, job.recent - 1}, near);
  attend({job.low_k, job.sinks, end - job.recent, job.recent, kAnyDistance}, distant);
  for (int token = 0; token < near_job.count; ++token) {
    const int first = token * group;
    const bool has_distant = near_job.first + token - job.recent >= job.sinks;
    const bool skips =
        has_distant && NearSuffices(near.running + first, distant.running + first, group, job.skip);
    *job.attended += has_distant && !skips ? 1 : 0;
    *job.skipped += skips ? 1 : 0;
    for (int i = first; i < first + group; ++i) {
      float* sums = near.sums + static_cast<size_t>(i) * sums_stride;
      if (has_distant && !skips) {
        MergeRow(distant.sums + static_cast<size_t>(i) * sums_stride, distant.running[i],
                 sums_stride, sums, &near.running[i]);
      }
      StoreRow<Values>(near_job, i, sums, near.running[i]);
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

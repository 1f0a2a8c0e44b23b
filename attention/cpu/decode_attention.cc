// How attention over block tables is cut into jobs, and its parts put together.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "attention/cpu/cpu_backend.h"
#include "attention/parallel.h"

namespace ziggurat::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Neighbouring heads of a decode job, of which each fetches for the next one: the more, where
/// their queries fit (BlockKernels::decode_query_floats).
constexpr int kMostJobHeads = 8, kFewJobHeads = 4;
/// Keys and values of a decode job, as if they were not codes: long enough to make the merge of its
/// result cheap. A segment that is shorter than a few of these is still cut in up to kFewParts for
/// every kFewJobHeads, so that one sequence alone keeps several threads busy.
constexpr size_t kTaskBytes = 2 << 20;
constexpr size_t kSmallTaskBytes = 256 << 10;
constexpr size_t kFewParts = 4;

/// How many of `num_heads` a job takes, all jobs about as many.
int JobHeads(int query_floats, const AttentionShape& shape, int num_heads) {
  const bool fit = kMostJobHeads * shape.group_size() * shape.head_dim <= query_floats;
  const int most = fit ? kMostJobHeads : kFewJobHeads, jobs = (num_heads + most - 1) / most;
  return (num_heads + jobs - 1) / jobs;
}

/// Calls emit(first_head, num_heads, begin, end) for the jobs that attend to slots [begin, end) of
/// a segment with its KV heads [first_head, first_head + num_heads).
///   query_floats  as BlockKernels::decode_query_floats
template <typename Emit>
void CutSegment(int query_floats, const SegmentView& segment, const AttentionShape& shape,
                int first_head, int num_heads, int begin, int end, Emit emit) {
  if (begin >= end) return;
  const int bits = EncodingBits(segment.encoding);
  const size_t plain_bytes = size_t{2} * shape.head_dim * std::max(bits, 16) / 8;
  const int heads = JobHeads(query_floats, shape, num_heads);
  // Parts of about equal length, on whole chunks.
  const size_t count = end - begin, bytes = count * plain_bytes * heads;
  const size_t most_parts = kFewParts * std::max(1, heads / kFewJobHeads);
  const size_t few = std::clamp<size_t>(bytes / kSmallTaskBytes, 1, most_parts);
  const size_t parts = std::max(few, bytes / kTaskBytes);
  const int length = static_cast<int>((count + parts * kChunk - 1) / (parts * kChunk)) * kChunk;
  for (int head = 0; head < num_heads; head += heads) {
    for (int part = begin; part < end; part += length) {
      emit(first_head + head, std::min(heads, num_heads - head), part,
           std::min(part + length, end));
    }
  }
}

/// The areas of heads from `first_head` on; KV heads are those of the model.
HeadBlocks HeadAreas(PoolView pool, const SegmentView& segment, const PlaneView& plane,
                     int first_head) {
  const size_t head = static_cast<size_t>(first_head - segment.first_kv_head);
  return {pool.base + head * plane.head_stride_bytes + plane.offset_bytes,
          pool.block_bytes,
          plane.head_stride_bytes,
          plane.blocks,
          plane.slots_per_block,
          plane.unit_bytes};
}

bool Covers(const SegmentView& segment, int kv_head) {
  return kv_head >= segment.first_kv_head && kv_head < segment.first_kv_head + segment.num_kv_heads;
}

/// 1 / (1 + e^(distant - near)): the share of the near tokens in attention to all.
double NearShare(double near, double distant) { return 1 / (1 + std::exp(distant - near)); }

}  // namespace

DecodeJob CpuBackend::JobOf(const AttentionShape& shape, PoolView pool, const SlotTask& task,
                            int thread) {
  const SegmentView& segment = *task.segment;
  const auto areas = [&](const PlaneView& plane) {
    return HeadAreas(pool, segment, plane, task.first_head);
  };
  DecodeJob job = {};
  job.head_dim = shape.head_dim;
  job.num_heads = task.num_heads;
  job.group_size = shape.group_size();
  job.scale = shape.scale;
  job.q = task.q;
  job.row_bytes = static_cast<size_t>(shape.head_dim) * EncodingBits(segment.encoding) / 8;
  job.code_group = IsGrouped(segment.encoding) ? segment.group : 0;
  job.keys = areas(segment.keys);
  job.key_scales = areas(segment.key_scales);
  job.key_norms = areas(segment.key_norms);
  if (!task.keys_only) {
    job.values = areas(segment.values);
    job.value_scales = areas(segment.value_scales);
    job.value_norms = areas(segment.value_norms);
  }
  job.begin = task.begin;
  job.end = task.end;
  job.scratch = scratch_.of(thread);
  return job;
}

template <typename Run>
void CpuBackend::RunTasks(const AttentionShape& shape, PoolView pool, Run run) {
  scratch_.Reserve(DecodeScratchFloats(shape.num_q_heads, shape.head_dim));
  // Every thread takes its next task before it works on the present one, so that the first blocks
  // of the next can be fetched meanwhile.
  std::atomic<size_t> next{0};
  ParallelThreads(std::min<size_t>(threads_, tasks_.size()), [&](int thread) {
    size_t i = next.fetch_add(1);
    while (i < tasks_.size()) {
      const size_t after = next.fetch_add(1);
      DecodeJob job = JobOf(shape, pool, tasks_[i], thread), following;
      if (after < tasks_.size()) {
        following = JobOf(shape, pool, tasks_[after], thread);
        job.following = &following;
      }
      run(tasks_[i], &job);
      i = after;
    }
  });
}

// ---- Attention ---------------------------------------------------------------------------------

void CpuBackend::AddDecodeTasks(const AttentionShape& shape, size_t item,
                                const SegmentView& segment, int num_slots, const float* q,
                                int first_head, int num_heads) {
  const size_t group = shape.group_size();
  CutSegment(Kernels(segment.encoding).decode_query_floats, segment, shape, first_head, num_heads,
             0, num_slots, [&](int head, int heads, int begin, int end) {
               tasks_.push_back({&segment, q + head * group * shape.head_dim, head, heads, begin,
                                 end, partial_rows_, false});
               for (int g = head; g < head + heads; ++g, partial_rows_ += group) {
                 parts_[item * shape.num_kv_heads + g].push_back({partial_rows_, segment.use});
               }
             });
}

void CpuBackend::RunDecode(const AttentionShape& shape, PoolView pool) {
  partial_.resize(partial_rows_ * shape.head_dim);
  partial_lse_.resize(partial_rows_);
  RunTasks(shape, pool, [&](const SlotTask& task, DecodeJob* job) {
    job->out = partial_.data() + task.result * shape.head_dim;
    job->lse = partial_lse_.data() + task.result;
    const BlockKernels& kernels = Kernels(task.segment->encoding);
    const bool is_rounded = shape.element == ElementType::kBf16;
    (is_rounded ? kernels.decode_rounded : kernels.decode)(*job);
  });
  tasks_.clear();
}

template <typename Takes>
float CpuBackend::LseOf(size_t unit, size_t query, Takes takes) const {
  float highest = kNothing;
  for (const Part& part : parts_[unit]) {
    if (takes(part.use)) highest = std::max(highest, partial_lse_[part.row + query]);
  }
  // std::max passes over NaN, so of nothing but NaN there is no highest either.
  const double base = highest == kNothing ? 0 : highest;
  double sum = 0;
  for (const Part& part : parts_[unit]) {
    if (takes(part.use)) sum += std::exp(double{partial_lse_[part.row + query]} - base);
  }
  return static_cast<float>(base + std::log(sum));  // of 0: kNothing
}

void CpuBackend::StoreDistant(const AttentionShape& shape, size_t item, const DecodeItem& of,
                              const float* q) const {
  const size_t group = shape.group_size(), dim = shape.head_dim;
  for (int g = 0; g < shape.num_kv_heads; ++g) {
    const bool lends =
        std::any_of(of.segments.begin(), of.segments.end(), [g](const SegmentView& segment) {
          return segment.use == SegmentUse::kDistantKeys && Covers(segment, g);
        });
    if (!lends) continue;
    std::copy_n(q + g * group * dim, group * dim, of.low_q + g * group * dim);
    for (size_t j = 0; j < group; ++j) {
      of.distant_lse[g * group + j] = LseOf(item * shape.num_kv_heads + g, j, [](SegmentUse use) {
        return use == SegmentUse::kDistantKeys;
      });
    }
  }
}

void CpuBackend::AddDistantTasks(const AttentionShape& shape, size_t item, const DecodeItem& of) {
  const int group = shape.group_size();
  const auto is_distant = [](const SegmentView& segment) {
    return segment.use == SegmentUse::kBorrowedKeys && segment.num_slots > 0;
  };
  std::vector<bool> attends(shape.num_kv_heads, false);
  for (int g = 0; g < shape.num_kv_heads; ++g) {
    if (std::none_of(of.segments.begin(), of.segments.end(), [&](const SegmentView& segment) {
          return is_distant(segment) && Covers(segment, g);
        })) {
      continue;
    }
    for (int j = 0; j < group && !attends[g]; ++j) {
      const float near = LseOf(item * shape.num_kv_heads + g, j,
                               [](SegmentUse use) { return use != SegmentUse::kBorrowedKeys; });
      attends[g] = !(NearShare(near, of.distant_lse[g * group + j]) >= of.skip);
    }
    if (of.counts != nullptr) ++(attends[g] ? of.counts->attended : of.counts->skipped);
  }
  for (const SegmentView& segment : of.segments) {
    if (!is_distant(segment)) continue;
    const int end = segment.first_kv_head + segment.num_kv_heads;
    for (int first = segment.first_kv_head; first < end; ++first) {
      int last = first;
      while (last < end && attends[last]) ++last;
      if (last > first) {
        AddDecodeTasks(shape, item, segment, segment.num_slots, of.low_q, first, last - first);
      }
      first = last;  // which does not attend
    }
  }
}

void CpuBackend::DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                 const float* q, PoolView pool, float* out, float* lse) {
  const size_t row = static_cast<size_t>(shape.num_q_heads) * shape.head_dim;
  tasks_.clear();
  partial_rows_ = 0;
  parts_.resize(items.size() * shape.num_kv_heads);
  for (std::vector<Part>& parts : parts_) parts.clear();
  bool borrows = false;
  for (size_t i = 0; i < items.size(); ++i) {
    for (int s = 0; s < static_cast<int>(items[i].segments.size()); ++s) {
      const SegmentView& segment = items[i].segments[s];
      if (segment.use == SegmentUse::kBorrowedKeys) {
        borrows = true;
      } else {
        AddDecodeTasks(shape, i, segment, LiveSlots(items[i], s), q + i * row,
                       segment.first_kv_head, segment.num_kv_heads);
      }
    }
  }
  RunDecode(shape, pool);
  for (size_t i = 0; i < items.size(); ++i) StoreDistant(shape, i, items[i], q + i * row);
  if (borrows) {
    for (size_t i = 0; i < items.size(); ++i) AddDistantTasks(shape, i, items[i]);
    RunDecode(shape, pool);
  }
  MergeDecode(shape, items.size(), out, lse);
}

void CpuBackend::MergeDecode(const AttentionShape& shape, size_t num_items, float* out,
                             float* lse) {
  const size_t group = shape.group_size(), dim = shape.head_dim;
  const size_t units = num_items * shape.num_kv_heads;
  ParallelRanges(threads_, units, group * dim, [&](size_t begin, size_t end) {
    for (size_t unit = begin; unit < end; ++unit) {
      for (size_t j = 0; j < group; ++j) {
        const size_t row = unit * group + j;
        AttentionState<float> state{out + row * dim};
        if (parts_[unit].empty()) std::fill_n(state.output, dim, 0.0f);
        for (const Part& part : parts_[unit]) {
          Merge(AttentionState<float>{partial_.data() + (part.row + j) * dim,
                                      partial_lse_[part.row + j]},
                shape.head_dim, &state);
        }
        if (lse != nullptr) lse[row] = state.lse;
      }
    }
  });
}

// ---- What slots receive ------------------------------------------------------------------------

void CpuBackend::AddWeightTasks(const AttentionShape& shape, const SegmentView& segment, int begin,
                                int end, const float* q) {
  CutSegment(kJobQueryFloats, segment, shape, segment.first_kv_head, segment.num_kv_heads, begin,
             end, [&](int head, int heads, int part_begin, int part_end) {
               tasks_.push_back(
                   {&segment, q + static_cast<size_t>(head) * shape.group_size() * shape.head_dim,
                    head, heads, part_begin, part_end, num_weights_, true});
               num_weights_ += static_cast<size_t>(heads) * (part_end - part_begin);
             });
}

void CpuBackend::AccumulateScores(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                                  const float* q, const float* lse, PoolView pool) {
  const size_t row = static_cast<size_t>(shape.num_q_heads) * shape.head_dim;
  const float share = 1.0f / static_cast<float>(shape.group_size());
  tasks_.clear();
  num_weights_ = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    for (int s = 0; s < static_cast<int>(items[i].segments.size()); ++s) {
      const SegmentView& segment = items[i].segments[s];
      if (segment.scores.blocks == nullptr) continue;
      AddWeightTasks(shape, segment, 0, LiveSlots(items[i], s), q + i * row);
    }
  }
  slot_weights_.resize(num_weights_);
  RunTasks(shape, pool, [&](const SlotTask& task, DecodeJob* job) {
    // The heads of a query and of its log-sum-exp are numbered alike.
    const size_t first_query = (task.q - q) / shape.head_dim;
    float* weights = slot_weights_.data() + task.result;
    Kernels(task.segment->encoding).slot_weights(*job, lse + first_query, weights);
    const PlaneView& plane = task.segment->scores;
    for (int head = 0; head < task.num_heads; ++head) {
      const size_t area =
          (task.first_head + head - task.segment->first_kv_head) * size_t{plane.head_stride_bytes} +
          plane.offset_bytes;
      for (int slot = task.begin; slot < task.end; ++slot, ++weights) {
        std::byte* block = pool.Block(plane.blocks[slot / plane.slots_per_block]);
        auto* scores = reinterpret_cast<float*>(block + area);
        scores[slot % plane.slots_per_block] += share * *weights;
      }
    }
  });
}

double CpuBackend::SlotMass(const AttentionShape& shape, const SegmentView& segment, int begin,
                            int end, const float* q, const float* lse, PoolView pool) {
  tasks_.clear();
  num_weights_ = 0;
  AddWeightTasks(shape, segment, begin, end, q);
  slot_weights_.resize(num_weights_);
  RunTasks(shape, pool, [&](const SlotTask& task, DecodeJob* job) {
    Kernels(segment.encoding)
        .slot_weights(*job, lse + static_cast<size_t>(task.first_head) * shape.group_size(),
                      slot_weights_.data() + task.result);
  });
  double sum = 0;
  for (float weight : slot_weights_) sum += weight;
  return sum / shape.num_q_heads;
}

}  // namespace ziggurat::cpu

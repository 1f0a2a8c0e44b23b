// Attention that keys receive: the sums of columns of the attention matrix, of queries whose
// log-sum-exp is known. Nothing of the matrix is kept but a sub-block of queries by a chunk of
// keys.
#pragma once

#include "attention/cpu/packed_workspace.h"

namespace ziggurat::cpu {
namespace {

/// Where the parts of a job's scratch lie (ColumnScratchFloats).
struct ColumnScratch {
  explicit ColumnScratch(const ColumnSumsJob& job) {
    packed = job.scratch;
    sums = packed + kQueryTokens * job.group_size * PaddedDim(job.head_dim);
    scores = sums + static_cast<size_t>(job.group_size) * kColumnsPerJob;
    keys = scores + kMaxTileQueries * kScoreStride;
  }
  float* packed;  ///< queries of kQueryTokens tokens
  float* sums;    ///< [group_size, kColumnsPerJob]
  float* scores;  ///< [kMostQueries of the workspace, kScoreStride]
  float* keys;    ///< all keys of the job, chunk after chunk
};

/// Adds what `count` query tokens, from the job's token `first` on, give to `width` keys from
/// `begin` on, to the sums of their heads.
template <class Workspace>
inline void AddColumns(const ColumnSumsJob& job, int first, int count, int begin, int width,
                       const float* keys, const ColumnScratch& scratch) {
  using V = typename Workspace::V;
  const int group = job.group_size, queries = count * group;
  for (int i = 0; i < queries;) {
    const int size = Workspace::NextSubBlock(queries - i);
    // Keys up to the query's own position.
    const auto visible = [&](int r) {
      return Smaller(width, job.first + first + r / group + 1 - begin);
    };
    const int seen = visible(i + size - 1);
    if (seen > 0) {
      Workspace::Score(size, scratch.packed + i * Workspace::QueryFloats(job.head_dim),
                       job.head_dim, keys, seen, scratch.scores);
      for (int j = 0; j < size; ++j) {
        const int token = first + (i + j) / group, head = (i + j) % group;
        float* scores = scratch.scores + j * kScoreStride;
        const int end = visible(i + j);
        // The rest of the last vector may be a key that the query does not see.
        for (int t = Larger(0, end); t % V::kLanes != 0; ++t) scores[t] = -__builtin_inff();
        AddWeights<V>(
            scores, job.scale * kLog2E, job.lse[token * job.lse_stride + head], end,
            scratch.sums + (job.head_stride == 0 ? 0 : head) * kColumnsPerJob + begin - job.begin);
      }
    }
    i += size;
  }
}

template <class Workspace>
void ColumnSums(const ColumnSumsJob& job) {
  const typename Workspace::Registers registers;
  const int dim = job.head_dim, group = job.group_size, width = job.end - job.begin;
  const int heads = job.head_stride == 0 ? 1 : group;
  const size_t chunk_floats = kChunk * Workspace::KeyFloats(dim);
  const ColumnScratch scratch(job);
  for (int begin = job.begin; begin < job.end; begin += kChunk) {
    Workspace::PackKeys(job.k + begin * job.kv_row_bytes, job.kv_row_bytes, dim,
                        Smaller(kChunk, job.end - begin),
                        scratch.keys + (begin - job.begin) / kChunk * chunk_floats);
  }
  for (int head = 0; head < heads; ++head) {
    __builtin_memset(job.sums + head * job.head_stride, 0, sizeof(float) * width);
  }
  // Queries before the first key see none of them. The same ones are added up first whatever the
  // job's keys, so that the sums do not depend on how keys are cut into jobs.
  const int unseeing = Larger(0, job.begin - job.first) / kQueryTokens * kQueryTokens;
  for (int first = unseeing; first < job.count; first += kQueryTokens) {
    const int count = Smaller(kQueryTokens, job.count - first);
    Workspace::PackQueries(job.q + first * job.q_row_bytes, job.q_row_bytes, group, count * group,
                           dim, scratch.packed);
    // Sums of sums: what is added to a large number is not small.
    __builtin_memset(scratch.sums, 0, sizeof(float) * heads * kColumnsPerJob);
    for (int begin = job.begin; begin < job.end; begin += kChunk) {
      AddColumns<Workspace>(job, first, count, begin, Smaller(kChunk, job.end - begin),
                            scratch.keys + (begin - job.begin) / kChunk * chunk_floats, scratch);
    }
    for (int head = 0; head < heads; ++head) {
      float* sums = job.sums + head * job.head_stride;
      const float* part = scratch.sums + head * kColumnsPerJob;
      for (int t = 0; t < width; ++t) sums[t] += part[t];
    }
  }
}

}  // namespace
}  // namespace ziggurat::cpu

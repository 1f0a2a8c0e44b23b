#include "tests/compression/golden/workspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace ziggurat::golden {
namespace {

/// [heads, rows, dim] -> [rows, heads * repeat, dim], every head `repeat` times in a row.
std::vector<float> ToTokenMajor(const Tensor& tensor, int repeat) {
  const int64_t heads = tensor.shape.at(0), rows = tensor.shape.at(1), dim = tensor.shape.at(2);
  std::vector<float> result;
  result.reserve(tensor.values.size() * static_cast<size_t>(repeat));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads * repeat; ++head) {
      const auto from = tensor.values.begin() + (head / repeat * rows + row) * dim;
      result.insert(result.end(), from, from + dim);
    }
  }
  return result;
}

/// The backend's log-sum-exp of the last rows. Earlier queries are not in the vectors and are taken
/// as zero; they do not influence the rows read here.
std::vector<float> MeasureLse(AttentionBackend& backend, const Workspace& workspace) {
  const AttentionShape& shape = workspace.shape;
  const size_t width = static_cast<size_t>(shape.num_q_heads) * shape.head_dim;
  std::vector<float> q(workspace.tokens * width);
  std::copy(workspace.q.begin(), workspace.q.end(), q.end() - workspace.rows * width);
  std::vector<float> out(q.size());
  std::vector<float> lse(static_cast<size_t>(workspace.tokens) * shape.num_q_heads);
  const int offsets[] = {0, workspace.tokens};
  backend.PrefillAttention(shape, {offsets},
                           {ElementType::kF32, q.data(), workspace.k.data(), workspace.k.data(),
                            out.data(), lse.data()});
  return {lse.end() - static_cast<ptrdiff_t>(workspace.rows) * shape.num_q_heads, lse.end()};
}

}  // namespace

Workspace MakeWorkspace(AttentionBackend& backend, const Tensors& input,
                        bool kv_head_per_query_head) {
  const Tensor& q = input.at("q");
  const Tensor& k = input.at("k");
  const int repeat = kv_head_per_query_head ? static_cast<int>(q.shape.at(0) / k.shape.at(0)) : 1;
  Workspace workspace;
  workspace.shape.num_q_heads = static_cast<int>(q.shape.at(0));
  workspace.shape.num_kv_heads = static_cast<int>(k.shape.at(0)) * repeat;
  workspace.shape.head_dim = static_cast<int>(k.shape.at(2));
  workspace.shape.scale = 1 / std::sqrt(static_cast<float>(workspace.shape.head_dim));
  workspace.tokens = static_cast<int>(k.shape.at(1));
  workspace.rows = static_cast<int>(q.shape.at(1));
  workspace.q = ToTokenMajor(q, 1);
  workspace.k = ToTokenMajor(k, repeat);
  workspace.lse = MeasureLse(backend, workspace);
  return workspace;
}

/// Its last `rows` queries and all its keys.
PromptTail TailOf(const Workspace& workspace, int rows) {
  if (rows > workspace.rows) throw std::runtime_error("the input has too few rows");
  const AttentionShape& shape = workspace.shape;
  const size_t heads = static_cast<size_t>(workspace.rows - rows) * shape.num_q_heads;
  return {ElementType::kF32,
          workspace.q.data() + heads * shape.head_dim,
          workspace.lse.data() + heads,
          workspace.k.data(),
          workspace.tokens,
          rows};
}

std::vector<std::vector<float>> MeasureWindowScores(AttentionBackend& backend,
                                                    const Workspace& workspace,
                                                    const WindowScoreStatistic& statistic) {
  const AttentionShape& shape = workspace.shape;
  const int candidates = workspace.tokens - statistic.window;
  std::vector<float> scores(static_cast<size_t>(shape.num_kv_heads) * candidates);
  const WindowPooling pooling =
      statistic.pooling == ScorePooling::kMax ? WindowPooling::kMax : WindowPooling::kAverage;
  backend.WindowScores(shape, TailOf(workspace, statistic.window), statistic.kernel, pooling,
                       scores.data());
  std::vector<std::vector<float>> heads;
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    const auto begin = scores.begin() + static_cast<ptrdiff_t>(head) * candidates;
    heads.emplace_back(begin, begin + candidates);
  }
  return heads;
}

std::vector<std::vector<float>> MeasureColumnSums(AttentionBackend& backend,
                                                  const Workspace& workspace, int rows, int begin,
                                                  int end, ScoreRows score_rows) {
  const AttentionShape& shape = workspace.shape;
  const int heads = score_rows == ScoreRows::kKvHeads ? shape.num_kv_heads : shape.num_q_heads;
  const int width = end - begin;
  std::vector<float> sums(static_cast<size_t>(heads) * width);
  backend.ColumnSums(shape, TailOf(workspace, rows), begin, end, score_rows, sums.data(), width);
  std::vector<std::vector<float>> result;
  for (int head = 0; head < heads; ++head) {
    const auto at = sums.begin() + static_cast<ptrdiff_t>(head) * width;
    result.emplace_back(at, at + width);
  }
  return result;
}

std::vector<int> KeptPositions(AttentionBackend& backend, const LayerEdit& edit, int tokens,
                               const std::vector<float>& scores) {
  std::vector<int> positions;
  const auto append = [&](int first, int last) {
    for (int i = first; i < last; ++i) positions.push_back(i);
  };
  const auto select = [&](int best, int recent) {
    std::vector<int32_t> indices(best);
    backend.SelectBest(scores.data(), tokens, 1, tokens - recent, best, indices.data());
    positions.assign(indices.begin(), indices.end());
    append(tokens - recent, tokens);
  };
  if (const auto* best = std::get_if<KeepBest>(&edit)) {
    select(best->best, best->recent);
  } else if (const auto* heavy = std::get_if<KeepHeavy>(&edit)) {
    select(heavy->heavy, heavy->recent);
  } else if (const auto* ring = std::get_if<KeepRing>(&edit)) {
    const int sinks = std::min(ring->sinks, tokens);
    append(0, sinks);
    append(std::max(sinks, tokens - ring->recent), tokens);
  } else {
    append(0, tokens);
  }
  return positions;
}

}  // namespace ziggurat::golden

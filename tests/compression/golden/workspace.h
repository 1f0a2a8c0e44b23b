// One layer's workspace as prefill would have left it, made of a golden input.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "compression/cache_plan.h"
#include "tests/compression/golden/golden_case.h"

namespace ziggurat::golden {

struct Workspace {
  AttentionShape shape;
  int tokens = 0;
  int rows = 0;            ///< the last query rows that the input holds
  std::vector<float> q;    ///< [rows, num_q_heads, head_dim]
  std::vector<float> k;    ///< [tokens, num_kv_heads, head_dim]
  std::vector<float> lse;  ///< [rows, num_q_heads], by the backend's own PrefillAttention
};

/// `input` holds q [query heads, rows, head_dim] and k [KV heads, tokens, head_dim].
/// `kv_head_per_query_head`: K is repeated so that every query head has a KV head of its own.
Workspace MakeWorkspace(AttentionBackend& backend, const Tensors& input,
                        bool kv_head_per_query_head);

/// WindowScores of the workspace: [num_kv_heads][tokens - window].
std::vector<std::vector<float>> MeasureWindowScores(AttentionBackend& backend,
                                                    const Workspace& workspace,
                                                    const WindowScoreStatistic& statistic);

/// ColumnSums of keys [begin, end) over the last `rows` queries: [heads][end - begin].
std::vector<std::vector<float>> MeasureColumnSums(AttentionBackend& backend,
                                                  const Workspace& workspace, int rows, int begin,
                                                  int end, ScoreRows score_rows);

/// The prompt positions that `edit` keeps of a head, ascending. `scores` are that head's, of
/// tokens from the first on; only KeepBest and KeepHeavy read them, those before the last ones that
/// are kept anyway.
std::vector<int> KeptPositions(AttentionBackend& backend, const LayerEdit& edit, int tokens,
                               const std::vector<float>& scores);

}  // namespace ziggurat::golden

#include "model/cache_ops/prompt_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compression/pod_groups.h"

namespace ziggurat {
namespace {

WindowPooling PoolingOf(const WindowScoreStatistic& statistic) {
  return statistic.pooling == ScorePooling::kMax ? WindowPooling::kMax : WindowPooling::kAverage;
}

/// Entropy (nats) of non-negative scores taken as a distribution; 0 where all are zero.
double Entropy(absl::Span<const float> scores) {
  double sum = 0, weighted = 0;
  for (const float score : scores) {
    sum += score;
    if (score > 0) weighted += score * std::log(static_cast<double>(score));
  }
  return sum > 0 ? std::log(sum) - weighted / sum : 0;
}

/// Gini coefficient of non-negative scores: 0 where all are equal, towards 1 where one has all. 0
/// of scores that are no numbers, which have no order.
double Gini(absl::Span<const float> scores) {
  std::vector<float> sorted(scores.begin(), scores.end());
  const auto is_nan = [](float score) { return std::isnan(score); };
  if (std::any_of(sorted.begin(), sorted.end(), is_nan)) return 0;
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  double sum = 0, ranked = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    sum += sorted[i];
    ranked += static_cast<double>(i + 1) * sorted[i];
  }
  return sum > 0 ? 2 * ranked / (n * sum) - (n + 1) / n : 0;
}

}  // namespace

PromptLayers::PromptLayers(PromptBackend* backend, const AttentionShape& shape, int tokens,
                           const CachePlan* plan, const PromptBuffers& buffers)
    : backend_(backend), shape_(shape), tokens_(tokens), plan_(plan), buffers_(buffers) {}

// ---- Before and during attention ---------------------------------------------------------------

void PromptLayers::Prepare(int layer, const PromptTensors& at) {
  const size_t e = ElementBytes(at.element);
  const size_t head_bytes = e * shape_.head_dim;
  const size_t q_row = head_bytes * shape_.num_q_heads, k_row = head_bytes * shape_.num_kv_heads;
  const auto* q = static_cast<const std::byte*>(at.q);
  const auto* k = static_cast<const std::byte*>(at.k);
  if (const int rows = buffers_.window_rows; rows > 0) {
    backend_->Copy(q + (tokens_ - rows) * q_row, rows * q_row, buffers_.window_q);
  }
  if (buffers_.low_q == nullptr) return;  // no PoD, or nothing of the prompt is distant yet
  // Queries and keys of the heads whose group begins here serve the layers above.
  const size_t group = shape_.group_size();
  auto* low_q = static_cast<std::byte*>(buffers_.low_q);
  auto* low_k = static_cast<std::byte*>(buffers_.low_k);
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    if (!plan_->distant->groups->IsShared(layer, head)) continue;
    const size_t q_at = head * group * head_bytes, k_at = head * head_bytes;
    backend_->CopyRows(q + q_at, q_row, group * head_bytes, tokens_, low_q + q_at, q_row);
    backend_->CopyRows(k + k_at, k_row, head_bytes, tokens_, low_k + k_at, k_row);
  }
}

bool PromptLayers::NeedsDistant(int layer) const {
  if (!plan_->distant) return false;
  const DistantOptions& options = *plan_->distant;
  if (tokens_ <= options.sinks + options.recent) return false;  // nothing is that far away
  return options.groups->Followed(layer).has_value();
}

void PromptLayers::AttendDistant(int layer, const PromptTensors& at, int first_row, int end_row) {
  const DistantOptions& options = *plan_->distant;
  borrows_.resize(shape_.num_kv_heads);
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    borrows_[head] = options.groups->Lowest(layer, head) != layer;
  }
  const DistantPrefill distant{options.sinks,  options.recent, options.skip, borrows_.data(),
                               buffers_.low_q, buffers_.low_k, first_row,    end_row};
  backend_->PrefillDistantAttention(shape_, tokens_, at, distant, &distant_counts_);
}

/// Kept tokens go on collecting from where the prompt left them, so the sums are needed even where
/// all of them stay.
bool PromptLayers::NeedsColumnSums(int layer) const {
  return summed_keys_ < tokens_ && std::holds_alternative<KeepHeavy>(plan_->layers[layer].edit);
}

void PromptLayers::SumColumns(const PromptTensors& at, int end_key) {
  backend_->ColumnSums(shape_, TailOf(at, tokens_), summed_keys_, end_key, ScoreRows::kKvHeads,
                       buffers_.scores + summed_keys_, tokens_);
  summed_keys_ = end_key;
}

int32_t* PromptLayers::LendIndices(size_t count) const {
  return static_cast<int32_t*>(backend_->Lend(count * sizeof(int32_t)));
}

// ---- Which tokens stay -------------------------------------------------------------------------

struct PromptLayers::Edit {
  PromptLayers* prompt;
  int layer;
  const LayerPlan& plan;
  const PromptTensors& at;

  void operator()(const KeepAll&) const {
    prompt->selected_ = 0;
    const auto* statistic = std::get_if<WindowScoreStatistic>(&plan.statistic);
    if (statistic != nullptr) prompt->MeasureStored(*statistic, layer, at);
  }
  void operator()(const KeepBest& edit) const {
    prompt->selected_ = 0;
    if (edit.best + edit.recent >= prompt->tokens_) return;
    prompt->SelectBest(std::get<WindowScoreStatistic>(plan.statistic), edit, layer, at);
  }
  void operator()(const KeepRing&) const { prompt->selected_ = 0; }
  void operator()(const KeepHeavy& edit) const { prompt->SelectHeavy(edit); }
  void operator()(const KeepWindows& edit) const { prompt->SelectWindows(edit, at); }
  void operator()(const KeepAsLeader&) const {}  // what was selected last stands
};

LayerMeasured PromptLayers::Measure(int layer, const PromptTensors& at) {
  const LayerPlan& plan = plan_->layers[layer];
  importance_ = 0;
  if (NeedsColumnSums(layer)) SumColumns(at, tokens_);
  summed_keys_ = 0;
  std::visit(Edit{this, layer, plan, at}, plan.edit);
  LayerMeasured measured;
  measured.importance = importance_;
  measured.kept_tokens = measured.first_tokens = tokens_;
  const auto keep_ring = [&](int sinks, int recent) {
    selection_stands_ = false;
    measured.KeepFirstAndLast(sinks, recent, tokens_);
  };
  selection_stands_ = selected_ > 0;
  if (selection_stands_) {
    measured.kept_tokens = selected_;
    measured.kept = KeptOnHost();
    measured.first_tokens = measured.kept.empty() ? LayerMeasured::kOnDevice : 0;
  }
  if (const auto* ring = std::get_if<KeepRing>(&plan.edit)) keep_ring(ring->sinks, ring->recent);
  if (plan.lazy && tokens_ > plan.lazy->sinks + plan.lazy->recent && IsLazy(*plan.lazy, at)) {
    measured.lazy = true;
    keep_ring(plan.lazy->sinks, plan.lazy->recent);
  }
  if (plan.merge == MergeRole::kLower) {
    const size_t bytes = ElementBytes(at.element) * static_cast<size_t>(tokens_) *
                         shape_.num_kv_heads * shape_.head_dim;
    backend_->Copy(at.k, bytes, buffers_.lower_k);
    backend_->Copy(at.v, bytes, buffers_.lower_v);
  } else if (plan.merge == MergeRole::kUpper) {
    measured.retained_tokens = SelectRetained(*plan_->merge, at);
  }
  measured.distant = std::exchange(distant_counts_, {});
  if (plan_->needs.recall) measured.attention_recall = Recall(layer, measured, at);
  last_ = measured;
  return measured;
}

/// The saved queries of the last `rows` tokens.
PromptTail PromptLayers::TailOf(const PromptTensors& at, int rows) const {
  const size_t row = ElementBytes(at.element) * shape_.num_q_heads * shape_.head_dim;
  const auto* saved = static_cast<const std::byte*>(buffers_.window_q);
  return {at.element,
          saved + (buffers_.window_rows - rows) * row,
          at.lse + static_cast<size_t>(tokens_ - rows) * shape_.num_q_heads,
          at.k,
          tokens_,
          rows};
}

void PromptLayers::KeepSelected(const int32_t* best_of, size_t stride, int best, int recent,
                                int layer) {
  selected_ = best + recent;
  const auto keep = [&](int head, int heads) {
    backend_->KeepSelected(best_of + head * stride, stride, heads, best, tokens_ - recent, recent,
                           buffers_.selection + static_cast<size_t>(head) * selected_);
  };
  if (!plan_->distant) return keep(0, shape_.num_kv_heads);
  for (int head = 0; head < shape_.num_kv_heads; ++head) {
    // In PoD a head that follows keeps what its lowest layer kept.
    if (plan_->distant->groups->Lowest(layer, head) == layer) keep(head, 1);
  }
}

/// What a device selected comes to the host only where the scheduler lays tokens out by position.
absl::Span<const int32_t> PromptLayers::KeptOnHost() {
  const size_t count = static_cast<size_t>(shape_.num_kv_heads) * selected_;
  if (backend_->is_hosts()) return {buffers_.selection, count};
  if (!plan_->distant) return {};
  host_selection_.resize(count);
  backend_->Download(buffers_.selection, count * sizeof(int32_t), host_selection_.data());
  return host_selection_;
}

void PromptLayers::SelectBest(const WindowScoreStatistic& statistic, const KeepBest& edit,
                              int layer, const PromptTensors& at) {
  const int window = statistic.window, candidates = tokens_ - window;
  backend_->WindowScores(shape_, TailOf(at, window), statistic.kernel, PoolingOf(statistic),
                         buffers_.scores);
  int32_t* best = LendIndices(static_cast<size_t>(shape_.num_kv_heads) * edit.best);
  backend_->SelectBest(buffers_.scores, candidates, shape_.num_kv_heads, candidates, edit.best,
                       best);
  KeepSelected(best, edit.best, edit.best, edit.recent, layer);
}

void PromptLayers::SelectHeavy(const KeepHeavy& edit) {
  selected_ = 0;
  if (edit.heavy + edit.recent >= tokens_) return;
  int32_t* best = LendIndices(static_cast<size_t>(shape_.num_kv_heads) * edit.heavy);
  backend_->SelectBest(buffers_.scores, tokens_, shape_.num_kv_heads, tokens_ - edit.recent,
                       edit.heavy, best);
  KeepSelected(best, edit.heavy, edit.heavy, edit.recent, 0);
}

void PromptLayers::SelectWindows(const KeepWindows& edit, const PromptTensors& at) {
  selected_ = 0;
  const int candidates = tokens_ - edit.observe;
  if (candidates <= edit.budget) return;
  backend_->ColumnSums(shape_, TailOf(at, edit.observe), 0, candidates, ScoreRows::kQueryHeads,
                       buffers_.scores, candidates);
  int32_t* of_all_heads = LendIndices(edit.budget);
  const int count = backend_->SelectWindows(buffers_.scores, shape_.num_q_heads, candidates,
                                            edit.review, edit.best, edit.budget, of_all_heads);
  KeepSelected(of_all_heads, 0, count, edit.observe, 0);
}

void PromptLayers::MeasureStored(const WindowScoreStatistic& statistic, int layer,
                                 const PromptTensors& at) {
  const int window = statistic.window, candidates = tokens_ - window;
  // Without room for scores SelectStored says so.
  if (candidates <= 0 || buffers_.stored_scores == nullptr) return;
  const auto measure = [&](int kernel, float* scores) {
    backend_->WindowScores(shape_, TailOf(at, window), kernel, PoolingOf(statistic), scores);
  };
  const size_t rows = shape_.num_kv_heads;
  measure(statistic.kernel, buffers_.stored_scores + layer * rows * tokens_);
  const bool is_gini = plan_->importance == LayerImportance::kGini;
  if (!is_gini && plan_->importance != LayerImportance::kEntropy) return;
  measure(1, buffers_.scores);
  std::vector<float> all(rows * candidates);
  backend_->Download(buffers_.scores, all.size() * sizeof(float), all.data());
  for (size_t head = 0; head < rows; ++head) {
    const absl::Span<const float> scores(all.data() + head * candidates, candidates);
    importance_ += (is_gini ? Gini(scores) : Entropy(scores)) / static_cast<double>(rows);
  }
}

absl::Status PromptLayers::SelectStored(int layer, const KeepBest& edit,
                                        std::vector<int32_t>* kept) {
  if (buffers_.stored_scores == nullptr || edit.best + edit.recent > tokens_) {
    return absl::InternalError(absl::StrCat("no stored scores select ", edit.best, " + ",
                                            edit.recent, " of ", tokens_, " tokens"));
  }
  const size_t heads = shape_.num_kv_heads;
  std::vector<int32_t> best(heads * edit.best);
  int32_t* selected = LendIndices(best.size());
  backend_->SelectBest(buffers_.stored_scores + layer * heads * tokens_, tokens_ - edit.recent,
                       shape_.num_kv_heads, tokens_ - edit.recent, edit.best, selected);
  backend_->Download(selected, best.size() * sizeof(int32_t), best.data());
  kept->clear();
  for (size_t head = 0; head < heads; ++head) {
    kept->insert(kept->end(), best.begin() + static_cast<std::ptrdiff_t>(head * edit.best),
                 best.begin() + static_cast<std::ptrdiff_t>((head + 1) * edit.best));
    for (int i = tokens_ - edit.recent; i < tokens_; ++i) kept->push_back(i);
  }
  return absl::OkStatus();
}

// ---- Other statistics --------------------------------------------------------------------------

/// SimLayerKV, table 5: the attention on the gathered keys, from their scores and the LSE over all.
bool PromptLayers::IsLazy(const LazyTest& test, const PromptTensors& at) {
  const int rows = std::min(test.last, buffers_.window_rows);
  double mass = 0;
  for (const auto& [begin, end] :
       {std::pair<int, int>(0, test.sinks), std::pair<int, int>(tokens_ - test.recent, tokens_)}) {
    std::vector<float> sums(static_cast<size_t>(shape_.num_kv_heads) * (end - begin));
    if (sums.empty()) continue;
    auto* received = static_cast<float*>(backend_->Lend(sums.size() * sizeof(float)));
    backend_->ColumnSums(shape_, TailOf(at, rows), begin, end, ScoreRows::kKvHeads, received,
                         end - begin);
    backend_->Download(received, sums.size() * sizeof(float), sums.data());
    mass += std::accumulate(sums.begin(), sums.end(), 0.0);
  }
  importance_ = mass / (static_cast<double>(rows) * shape_.num_kv_heads);
  return test.IsMet(importance_);
}

int PromptLayers::SelectRetained(const MergeOptions& merge, const PromptTensors& at) {
  const size_t heads = shape_.num_kv_heads, n = tokens_;
  float* angles = buffers_.scores;
  backend_->MergeAngles(shape_, at.element, buffers_.lower_k, at.k, tokens_, angles);
  retained_ = merge.Retained(tokens_);
  if (merge.by_threshold) {
    retained_ = 0;
    std::vector<float> all(heads * n);
    backend_->Download(angles, all.size() * sizeof(float), all.data());
    for (size_t head = 0; head < heads; ++head) {
      const float* of_head = all.data() + head * n;
      const auto [least, most] = std::minmax_element(of_head, of_head + n);
      // In double, and both sides alike: the whole range takes in the least angle itself.
      const double largest = *most, reach = merge.retain * (largest - *least);
      const auto is_near = [&](float angle) { return largest - angle <= reach; };
      retained_ =
          std::max(retained_, static_cast<int>(std::count_if(of_head, of_head + n, is_near)));
    }
  }
  // [G, retained], and behind them [G, n - retained]: those that are merged.
  backend_->SelectBest(angles, tokens_, shape_.num_kv_heads, tokens_, retained_,
                       buffers_.selection);
  backend_->Complement(buffers_.selection, shape_.num_kv_heads, retained_, tokens_,
                       buffers_.selection + heads * retained_);
  return retained_;
}

void PromptLayers::LastAttention(const PromptTensors& at, int rows, float* attention) const {
  const size_t n = tokens_, heads = shape_.num_q_heads;
  std::vector<float> of_row;  // [num_q_heads, tokens that the row sees]
  auto* received = static_cast<float*>(backend_->Lend(heads * n * sizeof(float)));
  for (int row = 0; row < rows; ++row) {
    // The last query of a prompt that ends there.
    const int seen = tokens_ - rows + row + 1;
    PromptTail tail = TailOf(at, rows - row);
    tail.n = seen;
    tail.rows = 1;
    of_row.resize(heads * seen);
    backend_->ColumnSums(shape_, tail, 0, seen, ScoreRows::kQueryHeads, received, seen);
    backend_->Download(received, of_row.size() * sizeof(float), of_row.data());
    for (size_t head = 0; head < heads; ++head) {
      float* out = attention + (head * rows + row) * n;
      std::copy_n(of_row.begin() + static_cast<std::ptrdiff_t>(head * seen), seen, out);
      std::fill(out + seen, out + n, 0.0f);
    }
  }
}

double PromptLayers::Recall(int layer, const LayerMeasured& measured, const PromptTensors& at) {
  const int n = tokens_, heads = shape_.num_kv_heads;
  if (measured.kept_tokens == n) return 1;
  // Distant tokens were weighed by another layer's queries and keys.
  if (NeedsDistant(layer)) return -1;
  const int rows = std::min(kRecallRows, buffers_.window_rows);
  backend_->ColumnSums(shape_, TailOf(at, rows), 0, n, ScoreRows::kKvHeads, buffers_.recall_sums,
                       n);
  std::vector<float> sums(static_cast<size_t>(heads) * n);
  backend_->Download(buffers_.recall_sums, sums.size() * sizeof(float), sums.data());
  std::vector<int32_t> selected;
  if (selection_stands_) {
    selected.resize(static_cast<size_t>(heads) * selected_);
    backend_->Download(buffers_.selection, selected.size() * sizeof(int32_t), selected.data());
  }
  LayerMeasured shown = measured;
  shown.kept = selected;
  double share = 0;
  for (int head = 0; head < heads; ++head) {
    const float* of_head = sums.data() + static_cast<size_t>(head) * n;
    double kept = 0;
    for (int i = 0; i < shown.kept_tokens; ++i) kept += of_head[shown.PositionOf(head, i, n)];
    const double all = std::accumulate(of_head, of_head + n, 0.0);
    share += all > 0 ? kept / all : 0;
  }
  return share / heads;
}

}  // namespace ziggurat

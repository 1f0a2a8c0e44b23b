// Layer-major prefill of a packed batch of prompts.
#include "model/decoder/llama_batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/scoped_seconds.h"

namespace ziggurat {
namespace {

/// Rows of each chunk (the last may have fewer): as few chunks as `most` allows, of about equal
/// size, so that none is a remnant of a few rows that would read all weights again.
int ChunkRows(int tokens, int most) {
  const int chunks = (tokens + most - 1) / most;
  const int even = (tokens + chunks - 1) / chunks;
  return std::min(most, (even + 15) / 16 * 16);
}

/// The end of a part of [begin, end), of whole steps, that takes about `flops`, of which what it
/// takes is subtracted. A step of 0: it is all, and nothing is subtracted.
///   flops_of(from, to)  what a step takes
int EndOfSteps(int begin, int end, int step, absl::FunctionRef<double(int from, int to)> flops_of,
               double* flops) {
  if (step == 0) return end;
  while (*flops > 0 && begin < end) {
    const int next = std::min(begin + step, end);
    *flops -= flops_of(begin, next);
    begin = next;
  }
  return begin;
}

}  // namespace

absl::Status LlamaRunner::CheckPrompts(int lane, absl::Span<const PrefillPrompt> prompts) const {
  if (lane < 0 || lane >= static_cast<int>(lanes_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("there is no prefill lane ", lane));
  }
  if (used_bytes_[lane] > 0) return absl::FailedPreconditionError("a prefill batch is under way");
  if (prompts.empty()) return absl::InvalidArgumentError("a prefill batch without prompts");
  int64_t tokens = 0;
  size_t needs = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& ids = prompts[i].token_ids;
    if (ids.empty()) return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " is empty"));
    if (ids.size() > static_cast<size_t>(shape().max_context_tokens)) {
      return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " has ", ids.size(),
                                                     " tokens, the context holds ",
                                                     shape().max_context_tokens));
    }
    for (const int32_t id : ids) {
      if (id < 0 || id >= shape().vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat("token id ", id, " of prompt ", i,
                                                       " is outside the vocabulary of ",
                                                       shape().vocab_size));
      }
    }
    const CachePlan* plan = prompts[i].plan;
    if (plan == nullptr || static_cast<int>(plan->layers.size()) != shape().num_layers) {
      return absl::InternalError(
          absl::StrCat("prompt ", i, " comes without a plan for every layer"));
    }
    tokens += static_cast<int64_t>(ids.size());
    needs += PromptNeedsBytes(static_cast<int>(ids.size()), plan->needs);
  }
  if (tokens > lanes_[lane].max_tokens ||
      WorkspaceBytes(static_cast<int>(tokens)) + needs > lanes_[lane].capacity_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a prefill batch of ", tokens, " tokens that needs ", needs,
                     " bytes besides; the workspace is for ", lanes_[lane].max_tokens,
                     " tokens and has ", lanes_[lane].capacity_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PromptBatch>> LlamaRunner::BeginPrefill(
    int lane, absl::Span<const PrefillPrompt> prompts) {
  if (absl::Status status = CheckPrompts(lane, prompts); !status.ok()) return status;
  PrepareThread();
  return std::make_unique<LlamaBatch>(this, lane, prompts);
}

LlamaBatch::LlamaBatch(LlamaRunner* runner, int lane, absl::Span<const PrefillPrompt> prompts)
    : runner_(*runner),
      backend_(*runner->backend_),
      weights_(*runner->weights_),
      shape_(runner->shape()),
      heads_(runner->attention_shape_),
      element_(runner->element_),
      lane_(lane),
      base_(runner->workspace_->base()),
      gone_(prompts.size()),
      cosines_(prompts.size()) {
  for (int below = 0; below < lane; ++below) base_ += runner_.lanes_[below].capacity_bytes;
  for (const PrefillPrompt& prompt : prompts) {
    offsets_.push_back(offsets_.back() + static_cast<int>(prompt.token_ids.size()));
  }
  layout_ = PrefillLayout::Of(runner_.workspace_shape_, num_tokens(), base_);
  size_t used = layout_.total_bytes;
  for (const PrefillPrompt& prompt : prompts) {
    const int length = static_cast<int>(prompt.token_ids.size());
    PromptBuffers buffers;
    used += LayPromptNeeds(shape_, length, prompt.plan->needs, base_ + used, &buffers);
    prompts_.emplace_back(&backend_, heads_, length, prompt.plan, buffers);
  }
  runner_.used_bytes_[lane] = used;
  size_t& high_water = runner_.high_water_bytes_[lane];
  high_water = std::max(high_water, used);
  EmbedPrompts(prompts);
}

LlamaBatch::~LlamaBatch() { runner_.used_bytes_[lane_] = 0; }

void LlamaBatch::EmbedPrompts(absl::Span<const PrefillPrompt> prompts) {
  const int hidden = shape_.hidden_size;
  const size_t half = runner_.inverse_frequencies_.size();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& ids = prompts[i].token_ids;
    const size_t first = offsets_[i];
    backend_.EmbedTokens(element_, weights_.embedding(), ids, hidden,
                         RowOf(layout_.residual, first, hidden));
    backend_.FillAngles(runner_.inverse_frequencies_, 0, static_cast<int>(ids.size()),
                        RowOf(layout_.cos, first, half), RowOf(layout_.sin, first, half));
  }
}

const char* LlamaBatch::StageName(Stage stage) {
  constexpr const char* kNames[] = {"its projection", "its attention", "its column sums",
                                    "its write", "its end"};
  return kNames[static_cast<int>(stage)];
}

absl::Status LlamaBatch::CheckTurn(int layer, Stage stage) const {
  if (layer == next_layer_ && layer < shape_.num_layers && stage == stage_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("layer ", layer, ", ", StageName(stage),
                                                    ", while layer ", next_layer_, ", ",
                                                    StageName(stage_), ", is next"));
}

/// Runs `run(first, rows)` over the rows from next_row on of the prompts that are still there, some
/// at a time. True: next_row is 0 again, for the next stage.
absl::StatusOr<bool> LlamaBatch::ForChunks(
    PauseTest pause, absl::FunctionRef<absl::Status(int first, int rows)> run) {
  const int prompts = num_prompts();
  for (int i = 0; i < prompts; ++i) {
    if (gone_[i] || offsets_[i + 1] <= next_row_) continue;
    int first = std::max(offsets_[i], next_row_);
    while (i + 1 < prompts && !gone_[i + 1]) ++i;
    const int end = offsets_[i + 1];
    const int chunk = ChunkRows(end - first, runner_.options_.chunk_tokens);
    while (first < end) {
      const int rows = std::min(chunk, end - first);
      if (absl::Status status = run(first, rows); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("layer ", next_layer_, ": ", status.message()));
      }
      next_row_ = first += rows;
      if (first < EndOfRows() && pause()) return false;
    }
  }
  next_row_ = 0;
  return true;
}

absl::StatusOr<bool> LlamaBatch::AttendLayer(int layer, PauseTest pause,
                                             std::vector<LayerMeasured>* measured) {
  const bool is_under_way = stage_ == Stage::kAttend || stage_ == Stage::kSumColumns;
  const Stage stage = is_under_way ? stage_ : Stage::kProject;
  if (absl::Status status = CheckTurn(layer, stage); !status.ok()) return status;
  runner_.PrepareThread();
  if (stage_ == Stage::kProject) {
    absl::StatusOr<bool> done = ForChunks(
        pause, [&](int first, int rows) { return Project(weights_.layer(layer), first, rows); });
    if (!done.ok() || !*done) return done;
    stage_ = Stage::kAttend;
  }
  const ScopedSeconds timer(&runner_.attention_seconds_);
  bool has_worked = false;  // in this call, which is to do something before it pauses
  if (stage_ == Stage::kAttend) {
    while (next_row_ < EndOfRows()) {
      AttendPart(layer);
      if (next_row_ < EndOfRows() && pause()) return false;
    }
    next_row_ = 0;
    stage_ = Stage::kSumColumns;
    has_worked = true;
  }
  for (int prompt; (prompt = NextToSum(layer)) >= 0; has_worked = true) {
    if (has_worked && pause()) return false;
    SumPart(prompt);
  }
  for (int i = 0; i < num_prompts(); ++i) {
    if (!gone_[i]) (*measured)[i] = prompts_[i].Measure(layer, TensorsOf(i));
  }
  stage_ = Stage::kWrite;
  return true;
}

PromptTensors LlamaBatch::TensorsOf(int prompt) const {
  const PrefillLayout& at = layout_;
  const size_t dim = heads_.head_dim, first = offsets_[prompt];
  const size_t q_width = heads_.num_q_heads * dim;
  const size_t kv_width = heads_.num_kv_heads * dim;
  void* const q = RowOf(at.q, first, q_width);
  return {element_,
          q,
          RowOf(at.k, first, kv_width),
          RowOf(at.v, first, kv_width),
          q,
          RowOf(at.lse, first, heads_.num_q_heads)};
}

/// Behind the last row of the prompts that are still there.
int LlamaBatch::EndOfRows() const {
  int last = num_prompts();
  while (last > 0 && gone_[last - 1]) --last;
  return offsets_[last];
}

/// What is computed between two questions whether to pause.
double LlamaBatch::FlopsOfAPart() const {
  return runner_.options_.attention_part_flops * runner_.options_.threads;
}

/// Into how many jobs, each of the least rows or keys of a part, a KV head's share is cut at least.
int LlamaBatch::JobsOfAHead() const {
  constexpr int kJobsOfAThread = 4;  // so that threads end at about the same time
  const int jobs = kJobsOfAThread * runner_.options_.threads;
  return (jobs + heads_.num_kv_heads - 1) / heads_.num_kv_heads;
}

/// Attends some of the rows from next_row on, of which there are some. Neighbouring prompts are
/// attended together, but those that attend with other layers' keys alone.
void LlamaBatch::AttendPart(int layer) {
  int i = 0;
  while (gone_[i] || offsets_[i + 1] <= next_row_) ++i;
  const int first = i, start = offsets_[first];
  const int first_row = std::max(next_row_ - start, 0);
  double flops = FlopsOfAPart();
  const PromptTensors at = TensorsOf(first);
  if (first_row == 0) prompts_[first].Prepare(layer, at);
  int end_row = EndOfPart(first, first_row, &flops);
  next_row_ = start + end_row;
  if (prompts_[first].NeedsDistant(layer)) {
    return prompts_[first].AttendDistant(layer, at, first_row, end_row);
  }
  std::vector<int> offsets = {0, offsets_[first + 1] - start};
  while (end_row == offsets.back() && flops > 0 && ++i < num_prompts()) {
    if (gone_[i] || prompts_[i].NeedsDistant(layer)) break;
    prompts_[i].Prepare(layer, TensorsOf(i));
    end_row = offsets.back() + EndOfPart(i, 0, &flops);
    offsets.push_back(offsets_[i + 1] - start);
  }
  next_row_ = start + end_row;
  backend_.PrefillAttention(heads_, {offsets, first_row, end_row}, at);
}

/// A part of a prompt's attention from `first_row` on, counted in the prompt, that takes about
/// `flops`: where it ends. What it takes is subtracted. Where the backend does not attend parts all
/// of the prompt, and nothing is subtracted.
int LlamaBatch::EndOfPart(int prompt, int first_row, double* flops) const {
  // A product of queries with keys and one of weights with values.
  const double of_pair = 4.0 * heads_.num_q_heads * heads_.head_dim;
  return EndOfSteps(
      first_row, prompts_[prompt].tokens(), backend_.attention_part_rows(heads_) * JobsOfAHead(),
      [of_pair](int from, int to) { return of_pair * (to - from) * (from + to) / 2; }, flops);
}

/// The prompt of which columns are to be summed up next; -1: there is none.
int LlamaBatch::NextToSum(int layer) const {
  for (int i = 0; i < num_prompts(); ++i) {
    if (!gone_[i] && prompts_[i].NeedsColumnSums(layer)) return i;
  }
  return -1;
}

/// Sums up some of the prompt's columns.
void LlamaBatch::SumPart(int prompt) {
  PromptLayers& layers = prompts_[prompt];
  const int tokens = layers.tokens();
  const double of_pair = 2.0 * heads_.num_q_heads * heads_.head_dim;
  double flops = FlopsOfAPart();
  const int end_key = EndOfSteps(
      layers.summed_keys(), tokens, backend_.column_part_keys() * JobsOfAHead(),
      [=](int from, int to) { return of_pair * (to - from) * (tokens - from); }, &flops);
  layers.SumColumns(TensorsOf(prompt), end_key);
}

absl::Status LlamaBatch::WriteLayer(int layer, absl::Span<const LayerWrite> writes) {
  if (absl::Status status = CheckTurn(layer, Stage::kWrite); !status.ok()) return status;
  if (static_cast<int>(writes.size()) != num_prompts()) {
    return absl::InternalError(
        absl::StrCat(writes.size(), " writes for a batch of ", num_prompts(), " prompts"));
  }
  runner_.PrepareThread();
  const ScopedSeconds timer(&runner_.attention_seconds_);
  for (int i = 0; i < num_prompts(); ++i) {
    if (writes[i].view.empty()) continue;
    if (runner_.pool_.base == nullptr) return absl::FailedPreconditionError("no pool is attached");
    if (auto status = prompts_[i].Write(TensorsOf(i), runner_.pool_, writes[i]); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("layer ", layer, ", prompt ", i, ": ",
                                                      std::string(status.message())));
    }
  }
  cosines_.assign(num_prompts(), 0.0);
  stage_ = Stage::kFinish;
  return absl::OkStatus();
}

absl::StatusOr<bool> LlamaBatch::FinishLayer(int layer, PauseTest pause,
                                             std::vector<double>* cosines) {
  if (absl::Status status = CheckTurn(layer, Stage::kFinish); !status.ok()) return status;
  runner_.PrepareThread();
  absl::StatusOr<bool> done = ForChunks(
      pause, [&](int first, int rows) { return EndRows(weights_.layer(layer), first, rows); });
  if (!done.ok() || !*done) return done;
  *cosines = cosines_;
  stage_ = Stage::kProject;
  ++next_layer_;
  return true;
}

absl::Status LlamaBatch::Project(const LlamaLayer& layer, int first, int rows) {
  const PrefillLayout& at = layout_;
  const AttentionShape& heads = heads_;
  const size_t q_width = static_cast<size_t>(heads.num_q_heads) * heads.head_dim;
  const size_t kv_width = static_cast<size_t>(heads.num_kv_heads) * heads.head_dim;
  const size_t half = runner_.inverse_frequencies_.size();
  void* normed = at.normed;
  void* qkv = at.wide;
  backend_.RmsNorm(RowOf(at.residual, first, shape_.hidden_size), layer.attention_norm,
                   runner_.norm_epsilon_, rows, shape_.hidden_size, element_, normed);
  if (auto status = layer.qkv->Run(normed, rows, element_, qkv); !status.ok()) return status;
  backend_.SplitAndRotate(heads, element_, qkv, RowOf(at.cos, first, half),
                          RowOf(at.sin, first, half), rows, element_, RowOf(at.q, first, q_width),
                          RowOf(at.k, first, kv_width), RowOf(at.v, first, kv_width));
  return absl::OkStatus();
}

/// Output projection and MLP of some rows.
absl::Status LlamaBatch::EndRows(const LlamaLayer& layer, int first, int rows) {
  const PrefillLayout& at = layout_;
  const size_t hidden = shape_.hidden_size;
  const size_t q_width = static_cast<size_t>(heads_.num_q_heads) * heads_.head_dim;
  float* residual = RowOf(at.residual, first, hidden);
  bool compares = false;
  for (int i = 0; i < num_prompts(); ++i) compares = compares || WantsCosine(i);
  if (compares) backend_.Copy(residual, rows * hidden * sizeof(float), at.before);
  absl::Status status = layer.output->Accumulate(RowOf(at.q, first, q_width), rows, residual);
  if (!status.ok()) return status;
  if (compares) AddCosines(first, rows);
  return runner_.RunMlp(layer, rows, residual, at.normed, at.wide, at.gated);
}

/// Adds the share of rows [first, first + rows) to the mean cosine of the prompts that ask for it.
void LlamaBatch::AddCosines(int first, int rows) {
  const size_t hidden = shape_.hidden_size;
  for (int i = 0; i < num_prompts(); ++i) {
    if (!WantsCosine(i)) continue;
    const int begin = std::max(first, offsets_[i]);
    const int end = std::min(first + rows, offsets_[i + 1]);
    if (begin >= end) continue;
    const double sum = backend_.CosineSum(RowOf(layout_.before, begin - first, hidden),
                                          RowOf(layout_.residual, begin, hidden), end - begin,
                                          static_cast<int>(hidden));
    cosines_[i] += sum / prompts_[i].tokens();
  }
}

absl::Status LlamaBatch::SelectStored(int prompt, int layer, const KeepBest& edit,
                                      std::vector<int32_t>* kept) {
  if (prompt < 0 || prompt >= num_prompts()) {
    return absl::FailedPreconditionError("no such prompt is under way");
  }
  runner_.PrepareThread();
  return prompts_[prompt].SelectStored(layer, edit, kept);
}

absl::Status LlamaBatch::LastAttention(int prompt, int rows, float* attention) {
  if (stage_ != Stage::kWrite || prompt < 0 || prompt >= num_prompts()) {
    return absl::FailedPreconditionError("no such prompt has just been attended");
  }
  const PromptLayers& layers = prompts_[prompt];
  if (rows < 1 || rows > layers.window_rows()) {
    return absl::InvalidArgumentError(absl::StrCat("attention of the last ", rows, " tokens where ",
                                                   layers.window_rows(), " were kept"));
  }
  runner_.PrepareThread();
  layers.LastAttention(TensorsOf(prompt), rows, attention);
  return absl::OkStatus();
}

absl::Status LlamaBatch::LastLogits(float* logits) {
  if (next_layer_ != shape_.num_layers) {
    return absl::FailedPreconditionError("prefill is not through all layers");
  }
  runner_.PrepareThread();
  const int hidden = shape_.hidden_size;
  const int most =
      std::min({num_tokens(), runner_.options_.chunk_tokens, runner_.most_head_rows()});
  for (int first = 0; first < num_prompts(); first += most) {
    const int rows = std::min(most, num_prompts() - first);
    for (int i = 0; i < rows; ++i) {
      const int last = offsets_[first + i + 1] - 1;
      backend_.RmsNorm(RowOf(layout_.residual, last, hidden), weights_.final_norm(),
                       runner_.norm_epsilon_, 1, hidden, element_,
                       RowOf(layout_.normed, i, hidden));
    }
    absl::Status status = runner_.RunHead(layout_.normed, rows,
                                          logits + static_cast<size_t>(first) * shape_.vocab_size);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

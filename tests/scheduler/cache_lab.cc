#include "tests/scheduler/cache_lab.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "attention/reference/stored_segment.h"
#include "block_manager/sequence_cache.h"
#include "compression/pod_groups.h"
#include "model/cache_ops/cache_edit.h"

namespace ziggurat {
namespace {

absl::Status Never() { return absl::UnimplementedError("not a model"); }

/// Only EditCache is needed of a model, by decisions that lay layers out anew.
class EditingModel final : public ModelRunner {
 public:
  EditingModel(AttentionBackend* backend, AttentionShape shape, PoolView pool)
      : backend_(backend), shape_(shape), pool_(pool) {}
  const ModelShape& shape() const override { return model_shape_; }
  size_t WorkspaceBytes(int) const override { return 0; }
  size_t PromptNeedsBytes(int, const PrefillNeeds&) const override { return 0; }
  absl::Span<const PrefillLane> lanes() const override { return {}; }
  size_t workspace_high_water_bytes() const override { return 0; }
  absl::StatusOr<std::unique_ptr<PromptBatch>> BeginPrefill(
      int, absl::Span<const PrefillPrompt>) override {
    return Never();
  }
  absl::Status Decode(absl::Span<const DecodeInput>, float*) override { return Never(); }
  absl::Status EditCache(absl::Span<const CacheEdit> edits) override {
    return RunCacheEdits(*backend_, shape_, pool_, edits);
  }

 private:
  ModelShape model_shape_;
  AttentionBackend* backend_;
  AttentionShape shape_;
  PoolView pool_;
};

/// And only SelectStored of a batch.
class StoredScores final : public PromptBatch {
 public:
  explicit StoredScores(std::vector<std::unique_ptr<PromptLayers>>* prompts) : prompts_(*prompts) {}
  void Drop(int) override {}
  absl::StatusOr<bool> AttendLayer(int, PauseTest, std::vector<LayerMeasured>*) override {
    return Never();
  }
  absl::Status WriteLayer(int, absl::Span<const LayerWrite>) override { return Never(); }
  absl::StatusOr<bool> FinishLayer(int, PauseTest, std::vector<double>*) override {
    return Never();
  }
  absl::Status SelectStored(int prompt, int layer, const KeepBest& edit,
                            std::vector<int32_t>* kept) override {
    return prompts_[prompt]->SelectStored(layer, edit, kept);
  }
  absl::Status LastLogits(float*) override { return Never(); }

 private:
  std::vector<std::unique_ptr<PromptLayers>>& prompts_;
};

double Dot(const float* a, const float* b, int dim) {
  double sum = 0;
  for (int c = 0; c < dim; ++c) sum += double{a[c]} * b[c];
  return sum;
}

double Length(const float* x, int dim) { return std::sqrt(Dot(x, x, dim)); }

/// SLERP between the layers' directions, in double (docs/policies.md, minicache).
std::vector<double> Direction(const float* x0, const float* x1, int dim, double t) {
  const double n0 = Length(x0, dim), n1 = Length(x1, dim);
  const double angle = std::acos(std::clamp(Dot(x0, x1, dim) / (n0 * n1), -1.0, 1.0));
  const double w0 = std::sin((1 - t) * angle) / std::sin(angle);
  const double w1 = std::sin(t * angle) / std::sin(angle);
  std::vector<double> e(dim);
  double squares = 0;
  for (int c = 0; c < dim; ++c) {
    e[c] = w0 * x0[c] / n0 + w1 * x1[c] / n1;
    squares += e[c] * e[c];
  }
  for (double& x : e) x /= std::sqrt(squares);
  return e;
}

}  // namespace

LabOptions SmallLab(const std::string& policy, std::vector<int> lowest, int prompt_tokens,
                    int new_tokens) {
  LabOptions options;
  options.policy = policy;
  options.head_dim = 32;
  options.prompt_tokens = prompt_tokens;
  options.new_tokens = new_tokens;
  options.seed = prompt_tokens;
  auto groups = std::make_shared<PodGroups>();
  groups->name = "g";
  groups->num_layers = options.num_layers = 4;
  groups->num_kv_heads = options.num_kv_heads = 2;
  groups->lowest = std::move(lowest);
  options.resources.pod_groups.push_back(std::move(groups));
  return options;
}

CacheLab::CacheLab(LabOptions options)
    : options_(std::move(options)), ledger_(options_.num_layers) {
  shape_ = {options_.num_q_heads, options_.num_kv_heads, options_.head_dim,
            1 / std::sqrt(static_cast<float>(options_.head_dim))};
  geometry_ = {options_.num_layers, options_.num_kv_heads, options_.head_dim,
               CacheGeometry::DefaultBlockBytes(options_.num_kv_heads, options_.head_dim)};
  backend_ = options_.cpu ? *MakeCpuBackend(*DetectCpuLevel(), 1) : MakeReferenceBackend();
  std::mt19937_64 random(options_.seed);
  std::normal_distribution<float> normal;
  const size_t n = options_.prompt_tokens + options_.new_tokens;
  const size_t kv = n * options_.num_kv_heads * options_.head_dim;
  const size_t qs = n * options_.num_q_heads * options_.head_dim;
  for (int l = 0; l < options_.num_layers; ++l) {
    for (auto* tensor : {&k_, &v_, &q_}) {
      std::vector<float>& x = tensor->emplace_back(tensor == &q_ ? qs : kv);
      for (float& value : x) value = normal(random);
      // Neighbouring layers are alike, as pairs that are merged must be.
      if (tensor == &q_ || l == 0) continue;
      const std::vector<float>& below = (*tensor)[l - 1];
      for (size_t i = 0; i < x.size(); ++i) x[i] = 0.95f * below[i] + 0.3f * x[i];
    }
    importance_.push_back(0.1 + 0.8 * std::fmod(l * 0.37, 1.0));
  }
}

CacheLab::~CacheLab() { Release(); }

void CacheLab::Release() { store_.reset(); }

size_t CacheLab::QAt(int position, int head) const {
  return (static_cast<size_t>(position) * options_.num_q_heads + head) * options_.head_dim;
}
size_t CacheLab::KvAt(int position, int head) const {
  return (static_cast<size_t>(position) * options_.num_kv_heads + head) * options_.head_dim;
}

absl::Status CacheLab::Prefill() {
  auto policy = ParsePolicy(options_.policy, options_.resources);
  if (!policy.ok()) return policy.status();
  policy_ = *std::move(policy);
  ModelShape model;
  model.num_layers = options_.num_layers;
  model.num_q_heads = options_.num_q_heads;
  model.num_kv_heads = options_.num_kv_heads;
  model.head_dim = options_.head_dim;
  model.element = ElementType::kF32;
  const int n = options_.prompt_tokens;
  auto plan = PlanBlocks(*policy_, model, geometry_, {n, options_.new_tokens});
  if (!plan.ok()) return plan.status();
  block_plan_ = *std::move(plan);
  // Not a block more than the plan asks for.
  auto pool = BlockPool::Create(block_plan_.total_blocks, geometry_.block_bytes);
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  store_ = std::make_unique<SequenceStore>(block_plan_, pool_.get(), &ledger_);
  PromptBuffers buffers;
  std::vector<std::byte> room(LayPromptNeeds(model, n, block_plan_.plan.needs, nullptr, &buffers));
  LayPromptNeeds(model, n, block_plan_.plan.needs, room.data(), &buffers);
  std::vector<std::unique_ptr<PromptLayers>> prompts;
  prompts.push_back(
      std::make_unique<PromptLayers>(backend_.get(), shape_, n, &block_plan_.plan, buffers));
  editor_ = std::make_unique<EditingModel>(backend_.get(), shape_, pool_->view());
  PromptLayers& prompt = *prompts[0];
  held_.assign(options_.num_layers, std::vector<Head>(options_.num_kv_heads));
  merged_k_.resize(options_.num_layers);
  merged_v_.resize(options_.num_layers);
  for (auto* merged : {&merged_k_, &merged_v_}) {
    for (auto& layer : *merged) {
      layer.assign(options_.num_kv_heads,
                   std::vector<std::vector<double>>(n + options_.new_tokens));
    }
  }
  tail_.assign(options_.num_layers, 0);
  const std::vector<int> offsets = {0, n};
  for (int l = 0; l < options_.num_layers; ++l) {
    std::vector<float> q(q_[l].begin(), q_[l].begin() + static_cast<std::ptrdiff_t>(QAt(n, 0)));
    std::vector<float> lse(static_cast<size_t>(n) * options_.num_q_heads);
    const PromptTensors at{model.element, q.data(), k_[l].data(),
                           v_[l].data(),  q.data(), lse.data()};
    prompt.Prepare(l, at);
    if (prompt.NeedsDistant(l)) {
      prompt.AttendDistant(l, at, 0, prompt.tokens());
    } else {
      backend_->PrefillAttention(shape_, {offsets}, at);
    }
    const LayerMeasured measured = prompt.Measure(l, at);
    LayerWrite write;
    if (auto status = store_->FillLayer(l, measured, &write); !status.ok()) return status;
    if (block_plan_.plan.importance == LayerImportance::kCosine) {
      store_->SetImportance(l, importance_[l]);
    }
    if (block_plan_.plan.importance == LayerImportance::kEntropy ||
        block_plan_.plan.importance == LayerImportance::kGini) {
      importance_[l] = measured.importance;
    }
    SimulatePrompt(l, measured);
    if (write.view.empty()) continue;
    if (auto status = prompt.Write(at, pool_->view(), write); !status.ok()) return status;
  }
  tokens_ = n;
  if (block_plan_.plan.decide != DecideAt::kPrompt) return absl::OkStatus();
  const PolicyContext context = PolicyContextOf(model);
  const auto decided = policy_->Decide(context, {n, options_.new_tokens}, importance_);
  for (int l = 0; l < options_.num_layers; ++l) {
    edits_[l] = decided[l].edit;
    LayerMeasured measured;
    measured.kept_tokens = measured.first_tokens = n;
    std::vector<int32_t> kept;
    if (const auto* best = std::get_if<KeepBest>(&decided[l].edit);
        best != nullptr && best->best + best->recent < n) {
      auto status = prompt.SelectStored(l, *best, &kept);
      if (!status.ok()) return status;
      measured.kept_tokens = best->best + best->recent;
      measured.kept = kept;
    }
    for (Head& head : held_[l]) head = Head();
    SimulatePrompt(l, measured);
  }
  StoredScores scores(&prompts);
  return store_->Decide(*policy_, context, {&scores, 0}, editor_.get());
}

/// The positions that should be held, from the meaning of the edits alone.
void CacheLab::SimulatePrompt(int layer, const LayerMeasured& measured) {
  const int n = options_.prompt_tokens;
  const LayerPlan& plan = block_plan_.plan.layers[layer];
  if (static_cast<int>(edits_.size()) <= layer) {
    edits_.push_back(measured.lazy ? LayerEdit(plan.lazy->ring()) : plan.edit);
  }
  for (int g = 0; g < options_.num_kv_heads; ++g) {
    Head& head = held_[layer][g];
    if (const auto* ring = std::get_if<KeepRing>(&edits_[layer])) {
      for (int p = 0; p < n; ++p) {
        if (p < ring->sinks || p >= n - ring->recent) head.positions.push_back(p);
      }
    } else if (!measured.kept.empty()) {
      const auto* begin = measured.kept.data() + static_cast<size_t>(g) * measured.kept_tokens;
      head.positions.assign(begin, begin + measured.kept_tokens);
    } else {
      head.positions.resize(n);
      std::iota(head.positions.begin(), head.positions.end(), 0);
    }
    if (!std::holds_alternative<KeepHeavy>(edits_[layer])) continue;
    // Column sums of the whole attention matrix.
    head.scores.assign(n + options_.new_tokens, 0);
    const int group = shape_.group_size();
    for (int h = g * group; h < (g + 1) * group; ++h) {
      for (int i = 0; i < n; ++i) {
        std::vector<double> p(i + 1);
        double sum = 0;
        for (int j = 0; j <= i; ++j) {
          p[j] = std::exp(shape_.scale *
                          Dot(&q_[layer][QAt(i, h)], &k_[layer][KvAt(j, g)], options_.head_dim));
          sum += p[j];
        }
        for (int j = 0; j <= i; ++j) head.scores[j] += p[j] / sum / group;
      }
    }
  }
  if (plan.merge == MergeRole::kUpper) MergeRange(layer - 1, 0, n);
}

/// Tokens [first, first + count) of a pair are merged, but those of the largest angles.
void CacheLab::MergeRange(int lower, int first, int count) {
  const MergeOptions& merge = *block_plan_.plan.merge;
  const int dim = options_.head_dim;
  for (int g = 0; g < options_.num_kv_heads; ++g) {
    std::vector<std::pair<double, int>> cosines;  // smallest first: largest angle
    for (int p = first; p < first + count; ++p) {
      const float* x0 = &k_[lower][KvAt(p, g)];
      const float* x1 = &k_[lower + 1][KvAt(p, g)];
      cosines.push_back({Dot(x0, x1, dim) / (Length(x0, dim) * Length(x1, dim)), p});
    }
    std::sort(cosines.begin(), cosines.end());
    const int retained = static_cast<int>(std::ceil(merge.retain * count - 1e-9));
    for (int i = retained; i < count; ++i) {
      const int p = cosines[i].second;
      for (auto [tensor, merged] : {std::pair(&k_, &merged_k_), std::pair(&v_, &merged_v_)}) {
        const float* x0 = &(*tensor)[lower][KvAt(p, g)];
        const float* x1 = &(*tensor)[lower + 1][KvAt(p, g)];
        const std::vector<double> e = Direction(x0, x1, dim, merge.t);
        for (int l : {lower, lower + 1}) {
          const double norm = Length(&(*tensor)[l][KvAt(p, g)], dim);
          std::vector<double>& restored = (*merged)[l][g][p];
          restored.clear();
          for (double x : e) restored.push_back(norm * x);
        }
      }
    }
  }
}

void CacheLab::SimulateStep(int layer) {
  const int position = tokens_;
  const LayerPlan& plan = block_plan_.plan.layers[layer];
  if (plan.merge == MergeRole::kLower) {
    const int tail = block_plan_.plan.merge->tail;
    if (tail_[layer] == tail) {
      MergeRange(layer, position - tail, tail);
      tail_[layer] = 0;
    }
    ++tail_[layer];
  }
  for (int g = 0; g < options_.num_kv_heads; ++g) {
    Head& head = held_[layer][g];
    const auto* heavy = std::get_if<KeepHeavy>(&edits_[layer]);
    if (heavy != nullptr &&
        static_cast<int>(head.positions.size()) == heavy->heavy + heavy->recent + 1) {
      // What the step before freed: the lowest score outside its recent window.
      auto lowest = head.positions.end();
      for (auto it = head.positions.begin(); it != head.positions.end(); ++it) {
        if (*it > position - 1 - heavy->recent) continue;
        if (lowest == head.positions.end() || head.scores[*it] < head.scores[*lowest]) lowest = it;
      }
      head.positions.erase(lowest);
    }
    head.positions.push_back(position);
    if (const auto* ring = std::get_if<KeepRing>(&edits_[layer])) {
      // Grouped codes hold up to a group less one more.
      const int slack = block_plan_.plan.quantization && block_plan_.plan.quantization->group > 0
                            ? block_plan_.plan.quantization->group - 1
                            : 0;
      std::erase_if(head.positions, [&](int p) {
        return p >= ring->sinks && p <= position - ring->recent - slack;
      });
    }
  }
}

absl::Status CacheLab::Step() {
  std::vector<CacheEdit> edits;
  if (auto status = store_->PrepareStep(tokens_, &edits); !status.ok()) return status;
  if (!edits.empty()) {
    if (auto status = editor_->EditCache(edits); !status.ok()) return status;
    if (auto status = store_->FinishEdits(); !status.ok()) return status;
  }
  const absl::StatusOr<DecodeInput> input = store_->Append(tokens_);
  if (!input.ok()) return input.status();
  std::vector<float> low_q(static_cast<size_t>(options_.num_q_heads) * options_.head_dim);
  std::vector<float> distant_lse(options_.num_q_heads), lse(options_.num_q_heads);
  out_.assign(options_.num_layers, std::vector<float>(low_q.size()));
  for (int l = 0; l < options_.num_layers; ++l) {
    const DecodeInput::Layer& layer = input->layers[l];
    DecodeItem item;
    item.segments = layer.view;
    const int steps = input->StepsSince(layer);
    const TokenTarget target = layer.targets[0].After(steps);
    item.targets = layer.targets;
    if (steps > 0) item.targets = absl::MakeConstSpan(&target, 1);
    item.position = tokens_;
    item.score_recent = layer.score_recent;
    item.low_q = low_q.data();
    item.distant_lse = distant_lse.data();
    item.skip = input->skip;
    item.counts = input->counts;
    const float* q = &q_[l][QAt(tokens_, 0)];
    backend_->WriteStep(shape_, {&item, 1}, &k_[l][KvAt(tokens_, 0)], &v_[l][KvAt(tokens_, 0)],
                        pool_->view());
    backend_->DecodeAttention(shape_, {&item, 1}, q, pool_->view(), out_[l].data(), lse.data());
    backend_->AccumulateScores(shape_, {&item, 1}, q, lse.data(), pool_->view());
    SimulateStep(l);
    for (int g = 0; g < options_.num_kv_heads; ++g) {  // H2O goes on collecting
      Head& head = held_[l][g];
      if (head.scores.empty()) continue;
      for (int h = g * shape_.group_size(); h < (g + 1) * shape_.group_size(); ++h) {
        double sum = 0;
        std::vector<double> p;
        for (int j : head.positions) {
          p.push_back(std::exp(shape_.scale * Dot(q + h * options_.head_dim, &k_[l][KvAt(j, g)],
                                                  options_.head_dim)));
          sum += p.back();
        }
        for (size_t i = 0; i < p.size(); ++i) {
          head.scores[head.positions[i]] += p[i] / sum / shape_.group_size();
        }
      }
    }
  }
  ++tokens_;
  if (!store_->IsUndecided()) return absl::OkStatus();
  for (int l = 0; l < options_.num_layers; ++l) store_->SetImportance(l, importance_[l]);
  ModelShape model;
  model.num_layers = options_.num_layers;
  model.num_q_heads = options_.num_q_heads;
  model.num_kv_heads = options_.num_kv_heads;
  model.head_dim = options_.head_dim;
  const PolicyContext context = PolicyContextOf(model);
  const int left = options_.new_tokens - (tokens_ - options_.prompt_tokens);
  const auto decided = policy_->Decide(context, {tokens_, left}, importance_);
  auto status = store_->Decide(*policy_, context, {}, editor_.get());
  for (int l = 0; l < options_.num_layers; ++l) {
    edits_[l] = decided[l].edit;
    const auto* ring = std::get_if<KeepRing>(&edits_[l]);
    if (ring == nullptr) continue;
    for (Head& head : held_[l]) {
      std::erase_if(head.positions,
                    [&](int p) { return p >= ring->sinks && p < tokens_ - ring->recent; });
    }
  }
  return status;
}

absl::Status CacheLab::CheckIntegrity() const {
  const SequenceCache* cache = &store_->cache();
  if (auto status = ziggurat::CheckIntegrity(*pool_, {&cache, 1}); !status.ok()) return status;
  if (ledger_.total() != reserved_blocks() || ledger_.total() > pool_->free_blocks()) {
    return absl::InternalError(absl::StrCat(reserved_blocks(), " blocks reserved, the ledger has ",
                                            ledger_.total(), ", free are ", pool_->free_blocks()));
  }
  return absl::OkStatus();
}

int CacheLab::Nearest(const std::vector<float>& x, int kv_head,
                      const std::vector<double>& row) const {
  double best = 1e300;
  int nearest = -1;
  for (int p = 0; p < tokens_; ++p) {
    const float* at = &x[KvAt(p, kv_head)];
    double distance = 0;
    for (int c = 0; c < options_.head_dim; ++c) distance += (at[c] - row[c]) * (at[c] - row[c]);
    if (distance < best) {
      best = distance;
      nearest = p;
    }
  }
  return nearest;
}

std::string CacheLab::CheckDistant(int layer, int kv_head,
                                   const std::vector<ExpectedToken>& held) const {
  const DistantOptions& distant = *block_plan_.plan.distant;
  const PodGroups& groups = *distant.groups;
  const int lowest = groups.Lowest(layer, kv_head);
  const bool shared = lowest != layer || groups.IsShared(layer, kv_head);
  int late = 0;
  for (const ExpectedToken& token : held) {
    const int key = Nearest(k_[token.distant ? lowest : layer], kv_head, token.key);
    if (key != token.position) {
      return absl::StrCat("layer ", layer, " head ", kv_head, " has the key of ", key,
                          " with the value of ", token.position);
    }
    const bool is_distant =
        shared && token.position >= distant.sinks && tokens_ - 1 - token.position >= distant.recent;
    if (token.far && !is_distant) {
      return absl::StrCat("layer ", layer, " head ", kv_head, ": ", token.position,
                          " is not distant yet");
    }
    if (is_distant && !token.far) ++late;
  }
  const auto& quantization = block_plan_.plan.quantization;
  const int group = quantization && quantization->group > 0 ? quantization->group : 1;
  if (late < group) return "";
  return absl::StrCat("layer ", layer, " head ", kv_head, ": ", late,
                      " distant tokens are still near");
}

// What each slot of a head decodes to, and the position whose key (or, without keys of this layer,
// whose value) is nearest to it.
std::vector<ExpectedToken> CacheLab::Held(int layer, int kv_head) const {
  std::vector<ExpectedToken> held;
  for (const SegmentView& view : cache().layer(layer).view()) {
    const reference::StoredSegment segment(pool_->view(), view, options_.head_dim);
    if (!segment.covers(kv_head)) continue;
    for (int slot = 0; slot < view.num_slots; ++slot) {
      ExpectedToken token;
      token.key = segment.DecodedVector(reference::Side::kKeys, kv_head, slot);
      token.value = segment.DecodedVector(reference::Side::kValues, kv_head, slot);
      token.distant = view.use == SegmentUse::kBorrowedKeys;
      token.far = token.distant || view.use == SegmentUse::kDistantKeys;
      token.position = Nearest(v_[layer], kv_head, token.value);
      held.push_back(std::move(token));
    }
  }
  return held;
}

double CacheLab::CompareStep(std::string* what) const {
  store_->CatchUp();
  const int dim = options_.head_dim, position = tokens_ - 1;
  const CachePlan& plan = block_plan_.plan;
  const bool exact = !plan.quantization;
  double largest = 0, difference = 0;
  for (int l = 0; l < options_.num_layers; ++l) {
    for (int g = 0; g < options_.num_kv_heads; ++g) {
      std::vector<ExpectedToken> tokens = Held(l, g);
      std::multiset<int> found;
      for (const ExpectedToken& token : tokens) found.insert(token.position);
      const Head& head = held_[l][g];
      std::multiset<int> wanted(head.positions.begin(), head.positions.end());
      if (const auto* ring = std::get_if<KeepRing>(&edits_[l]); ring != nullptr && !exact) {
        // Of grouped codes the oldest few may or may not be gone.
        for (auto* set : {&found, &wanted}) {
          std::erase_if(*set,
                        [&](int p) { return p >= ring->sinks && p <= position - ring->recent; });
        }
      }
      if (found != wanted && what->empty()) {
        *what = absl::StrCat("layer ", l, " head ", g, " holds ", found.size(), " tokens, not ",
                             wanted.size());
        for (int p : wanted) {
          if (found.count(p) != 1)
            absl::StrAppend(what, "; position ", p, " ", found.count(p), " times");
        }
        for (int p : found) {
          if (wanted.count(p) == 0) absl::StrAppend(what, "; position ", p, " too many");
        }
      }
      if (plan.distant && what->empty()) *what = CheckDistant(l, g, tokens);
      if (exact) {  // every number from the formulas, not from the cache
        for (ExpectedToken& token : tokens) {
          int keys_of = l;
          token.distant = false;
          if (plan.distant && token.position >= plan.distant->sinks &&
              position - token.position >= plan.distant->recent) {
            keys_of = plan.distant->groups->Lowest(l, g);
            token.distant = keys_of != l;
          }
          const float* k = &k_[keys_of][KvAt(token.position, g)];
          const float* v = &v_[l][KvAt(token.position, g)];
          token.key.assign(k, k + dim);
          token.value.assign(v, v + dim);
          if (!merged_k_[l][g][token.position].empty()) {
            token.key = merged_k_[l][g][token.position];
            token.value = merged_v_[l][g][token.position];
          }
        }
      }
      for (int h = g * shape_.group_size(); h < (g + 1) * shape_.group_size(); ++h) {
        std::vector<double> mean(dim);
        double sum = 0;
        for (const ExpectedToken& token : tokens) {
          const int q_of = token.distant ? plan.distant->groups->Lowest(l, g) : l;
          const float* q = &q_[q_of][QAt(position, h)];
          double score = 0;
          for (int c = 0; c < dim; ++c) score += q[c] * token.key[c];
          const double weight = std::exp(shape_.scale * score);
          sum += weight;
          for (int c = 0; c < dim; ++c) mean[c] += weight * token.value[c];
        }
        for (int c = 0; c < dim; ++c) {
          const double expected = mean[c] / sum;
          largest = std::max(largest, std::abs(expected));
          difference =
              std::max(difference, std::abs(expected - out_[l][static_cast<size_t>(h) * dim + c]));
        }
      }
    }
  }
  return difference / largest;
}

}  // namespace ziggurat

#include "tests/model/decoder_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ziggurat::testing {
namespace {

void Require(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::abort();
}

template <typename T>
T Require(absl::StatusOr<T> result, const char* what) {
  Require(result.status(), what);
  return *std::move(result);
}

std::vector<Logits> Split(const Logits& all, size_t rows) {
  const size_t width = all.size() / rows;
  std::vector<Logits> split;
  for (size_t i = 0; i < rows; ++i) {
    split.emplace_back(all.begin() + i * width, all.begin() + (i + 1) * width);
  }
  return split;
}

}  // namespace

std::vector<std::string> BackendNames() {
  std::vector<std::string> names = {"reference"};
  if (DetectCpuLevel().ok()) names.push_back("cpu");
  return names;
}

std::unique_ptr<AttentionBackend> MakeBackend(const std::string& name, int threads) {
  if (name == "reference") return MakeReferenceBackend();
  return Require(MakeCpuBackend(Require(DetectCpuLevel(), "CPU level"), threads), "CPU backend");
}

std::unique_ptr<AttentionBackend> MakeBestBackend(int threads) {
  return MakeBackend(BackendNames().back(), threads);
}

DecoderHarness::DecoderHarness(const std::filesystem::path& dir, const DecoderOptions& options,
                               std::unique_ptr<AttentionBackend> backend, size_t pool_bytes)
    : DecoderHarness(Require(LoadLlamaDecoder(dir, options, std::move(backend)), "loading"),
                     pool_bytes) {}

DecoderHarness::DecoderHarness(std::unique_ptr<ModelRunner> runner, size_t pool_bytes)
    : runner_(std::move(runner)) {
  geometry_ = {shape().num_layers, shape().num_kv_heads, shape().head_dim,
               CacheGeometry::DefaultBlockBytes(shape().num_kv_heads, shape().head_dim)};
  RenewPool(pool_bytes);
}

void DecoderHarness::RenewPool(size_t pool_bytes) {
  const size_t blocks = pool_bytes / geometry_.block_bytes;
  std::byte* memory =
      Require(runner_->AllocatePool(blocks, geometry_.block_bytes), "the pool's memory");
  pool_ = Require(BlockPool::Create(blocks, geometry_.block_bytes, memory), "the pool");
  ledger_ = std::make_unique<ReservationLedger>(shape().num_layers);
  runner_->AttachPool(pool_->view());
}

TestSequence DecoderHarness::NewSequence(const std::string& policy, int prompt_tokens,
                                         int max_new_tokens) {
  TestSequence sequence;
  sequence.id = next_id_++;
  sequence.policy = Require(ParsePolicy(policy, resources_), "the policy");
  sequence.plan = std::make_unique<BlockPlan>(
      Require(PlanBlocks(*sequence.policy, shape(), geometry_, {prompt_tokens, max_new_tokens}),
              "the plan"));
  sequence.store = std::make_unique<SequenceStore>(*sequence.plan, pool_.get(), ledger_.get());
  sequence.measured.resize(shape().num_layers);
  return sequence;
}

void DecoderHarness::PrefillLayer(PromptBatch& batch, int layer,
                                  const std::vector<TestSequence*>& sequences) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i] == nullptr) batch.Drop(static_cast<int>(i));
  }
  const auto pause = [this] { return between_parts_ != nullptr; };
  std::vector<LayerMeasured> measured(sequences.size());
  while (!Require(batch.AttendLayer(layer, pause, &measured), "AttendLayer")) between_parts_();
  std::vector<LayerWrite> writes(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i] == nullptr) continue;
    Require(sequences[i]->store->FillLayer(layer, measured[i], &writes[i]), "FillLayer");
    sequences[i]->measured[layer] = measured[i];
    sequences[i]->measured[layer].kept = {};
  }
  std::vector<double> cosines(sequences.size());
  Require(batch.WriteLayer(layer, writes), "WriteLayer");
  while (!Require(batch.FinishLayer(layer, pause, &cosines), "FinishLayer")) between_parts_();
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i] == nullptr || sequences[i]->plan->plan.importance != LayerImportance::kCosine)
      continue;
    sequences[i]->store->SetImportance(layer, cosines[i]);
    sequences[i]->cosines.push_back(cosines[i]);
  }
}

void DecoderHarness::Decide(TestSequence& sequence, BatchPrompt prompt) {
  const PolicyContext context = PolicyContextOf(shape());
  Require(sequence.store->Decide(*sequence.policy, context, prompt, runner_.get()), "Decide");
}

std::unique_ptr<PromptBatch> DecoderHarness::Begin(const std::vector<TestSequence*>& sequences,
                                                   const std::vector<std::vector<int32_t>>& prompts,
                                                   int lane) {
  std::vector<PrefillPrompt> batch;
  for (size_t i = 0; i < prompts.size(); ++i) {
    batch.push_back({prompts[i], &sequences[i]->plan->plan});
    sequences[i]->length = static_cast<int>(prompts[i].size());
  }
  return Require(runner_->BeginPrefill(lane, batch), "BeginPrefill");
}

std::vector<Logits> DecoderHarness::Finish(std::unique_ptr<PromptBatch> batch,
                                           const std::vector<TestSequence*>& sequences) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i] == nullptr || sequences[i]->plan->plan.decide != DecideAt::kPrompt) continue;
    Decide(*sequences[i], {batch.get(), static_cast<int>(i)});
  }
  const size_t vocab = shape().vocab_size;
  Logits logits(sequences.size() * vocab);
  Require(batch->LastLogits(logits.data()), "LastLogits");
  std::vector<Logits> of_prompts;
  for (auto row = logits.begin(); row != logits.end(); row += vocab) {
    of_prompts.emplace_back(row, row + vocab);
  }
  return of_prompts;
}

std::vector<Logits> DecoderHarness::Prefill(const std::vector<TestSequence*>& sequences,
                                            const std::vector<std::vector<int32_t>>& prompts) {
  std::unique_ptr<PromptBatch> batch = Begin(sequences, prompts);
  for (int layer = 0; layer < shape().num_layers; ++layer) PrefillLayer(*batch, layer, sequences);
  return Finish(std::move(batch), sequences);
}

DecodeInput DecoderHarness::Append(TestSequence& sequence) {
  std::vector<CacheEdit> edits;
  Require(sequence.store->PrepareStep(sequence.length, &edits), "PrepareStep");
  if (!edits.empty()) {
    Require(runner_->EditCache(edits), "EditCache");
    Require(sequence.store->FinishEdits(), "FinishEdits");
  }
  DecodeInput input = Require(sequence.store->Append(sequence.length), "Append");
  input.sequence = sequence.id;
  return input;
}

std::vector<Logits> DecoderHarness::Decode(const std::vector<TestSequence*>& sequences,
                                           const std::vector<int32_t>& tokens) {
  std::vector<DecodeInput> inputs;
  for (size_t i = 0; i < sequences.size(); ++i) {
    inputs.push_back(Append(*sequences[i]));
    inputs.back().token_id = tokens[i];
  }
  Logits logits(sequences.size() * shape().vocab_size);
  Require(runner_->Decode(inputs, logits.data()), "Decode");
  for (TestSequence* sequence : sequences) {
    ++sequence->length;
    if (sequence->store->IsUndecided()) Decide(*sequence, {});
  }
  return Split(logits, sequences.size());
}

int ArgMax(const Logits& logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double MaxDifference(const Logits& a, const Logits& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= most)) most = difference;  // NaN stays
  }
  return most;
}

double RelativeDifference(const Logits& a, const Logits& b) {
  double largest = 0;
  for (const float value : b) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return MaxDifference(a, b) / largest;
}

}  // namespace ziggurat::testing

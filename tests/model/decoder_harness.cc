#include "tests/model/decoder_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <variant>

#include "compression/policy.h"

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
    : runner_(Require(LoadLlamaDecoder(dir, options, std::move(backend)), "loading")) {
  geometry_ = {shape().num_layers, shape().num_kv_heads, shape().head_dim,
               CacheGeometry::DefaultBlockBytes(shape().num_kv_heads, shape().head_dim)};
  pool_ = Require(BlockPool::Create(pool_bytes / geometry_.block_bytes, geometry_.block_bytes),
                  "the pool");
  runner_->AttachPool(pool_->view());
}

TestSequence DecoderHarness::NewSequence(const std::string& policy, int prompt_tokens,
                                         int max_new_tokens) {
  const PolicyContext context{shape().num_layers, shape().num_q_heads, shape().num_kv_heads,
                              shape().head_dim};
  TestSequence sequence;
  sequence.cache = std::make_unique<SequenceCache>(pool_.get(), &geometry_);
  sequence.plan =
      Require(ParsePolicy(policy), "the policy")->Plan(context, prompt_tokens, max_new_tokens);
  for (int i = 0; i < shape().num_layers; ++i) {
    SegmentOptions options{.format = KeyValueFormat(shape().element)};
    if (const auto* ring = std::get_if<KeepRing>(&sequence.plan.layers[i].edit)) {
      options.ring = RingShape{ring->sinks, ring->recent};
    }
    sequence.cache->layer(i).AddSegment(options);
  }
  return sequence;
}

LayerWrite DecoderHarness::PrepareWrite(TestSequence& sequence, int layer) {
  const LayerPlan& plan = sequence.plan.layers[layer];
  LayerBlockTable& table = sequence.cache->layer(layer);
  Require(table.Extend(0, static_cast<int>(plan.prompt_tokens_kept)), "extending a layer");
  return {plan.statistic, plan.edit, table.view()};
}

std::vector<Logits> DecoderHarness::Prefill(const std::vector<TestSequence*>& sequences,
                                            const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<PrefillPrompt> batch;
  for (size_t i = 0; i < prompts.size(); ++i) {
    batch.push_back({prompts[i], sequences[i]->plan.window_rows});
    sequences[i]->length = static_cast<int>(prompts[i].size());
  }
  Require(runner_->BeginPrefill(batch), "BeginPrefill");
  for (int layer = 0; layer < shape().num_layers; ++layer) {
    std::vector<LayerWrite> writes;
    for (TestSequence* sequence : sequences) writes.push_back(PrepareWrite(*sequence, layer));
    Require(runner_->PrefillLayer(layer, writes), "PrefillLayer");
  }
  Logits logits(prompts.size() * shape().vocab_size);
  Require(runner_->FinishPrefill(logits.data()), "FinishPrefill");
  return Split(logits, prompts.size());
}

std::vector<Logits> DecoderHarness::Decode(const std::vector<TestSequence*>& sequences,
                                           const std::vector<int32_t>& tokens) {
  std::vector<std::vector<DecodeInput::Layer>> layers(sequences.size());
  std::vector<DecodeInput> inputs;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int layer = 0; layer < shape().num_layers; ++layer) {
      LayerBlockTable& table = sequences[i]->cache->layer(layer);
      const int slot = Require(table.AppendSlot(0), "appending a slot");
      layers[i].push_back({table.view(), 0, slot});
    }
    inputs.push_back({tokens[i], sequences[i]->length++, layers[i]});
  }
  Logits logits(sequences.size() * shape().vocab_size);
  Require(runner_->Decode(inputs, logits.data()), "Decode");
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

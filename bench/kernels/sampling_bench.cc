#include "bench/kernels/sampling_bench.h"

#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/sampling/sampling.h"

namespace ziggurat {
namespace {

std::vector<float> NormalLogits(int vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

void BM_Sample(benchmark::State& state, const SamplingParameters& parameters, int vocab) {
  std::vector<float> logits = NormalLogits(vocab);
  Sampler sampler(parameters, {}, vocab);
  for (auto _ : state) {  // without penalties and forbidden tokens logits stay as they are
    benchmark::DoNotOptimize(sampler.Sample(absl::MakeSpan(logits), {}));
  }
}

}  // namespace

void RegisterSamplingBench() {
  const std::pair<const char*, SamplingParameters> draws[] = {
      {"greedy", {}},
      {"greedy-logprobs", {.logprobs = 5}},
      {"temperature", {.temperature = 1, .seed = 1}},
      {"top_k", {.temperature = 1, .top_k = 50, .seed = 1}},
      {"top_p", {.temperature = 1, .top_p = 0.9f, .seed = 1}},
      {"min_p", {.temperature = 1, .min_p = 0.05f, .seed = 1}}};
  for (const int vocab : {32000, 128256}) {
    for (const auto& [name, parameters] : draws) {
      benchmark::RegisterBenchmark(
          ("sample/" + std::string(name) + "/vocab:" + std::to_string(vocab)).c_str(),
          [=, p = parameters](benchmark::State& state) { BM_Sample(state, p, vocab); })
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace ziggurat

// What it takes to draw the tokens of a step on this GPU, by what requests ask for.
//
//   cuda_sampling_bench          every case
//
// Logits are drawn from a normal distribution, which is flatter than a model's, or are all equal,
// which takes the way of last resort.

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "attention/cuda/sampling.h"
#include "bench/cuda/device_timing.h"

namespace ziggurat::cuda {
namespace {

constexpr int kVocabSize = 128256;  // LLaMA 3's

struct Case {
  const char* name;
  SamplingRequest request;
  float spread = 3;  ///< standard deviation of the logits
};

SamplingRequest Request(float temperature, int top_k, float top_p, int logprobs) {
  SamplingRequest request;
  request.temperature = temperature;
  request.top_k = top_k;
  request.top_p = top_p;
  request.logprobs = logprobs;
  request.uniform = 0.5;
  return request;
}

void Run(const Case& c, int count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<size_t>(count) * kVocabSize);
  for (float& x : logits) x = c.spread * normal(random);
  const std::vector<SamplingRequest> requests(count, c.request);
  const DeviceBytes device_logits(absl::MakeConstSpan(logits));
  const DeviceBytes device_requests(absl::MakeConstSpan(requests));
  const DeviceBytes records(requests.size() * sizeof(SampledRecord));
  const double seconds = SecondsOf(nullptr, [&] {
    LaunchSample(device_logits.get<float>(), kVocabSize, device_requests.get<SamplingRequest>(),
                 count, records.get<SampledRecord>(), nullptr);
  });
  std::printf("%-34s %4d sequences %9.1f us\n", c.name, count, seconds * 1e6);
}

int Main() {
  std::printf("%s, vocabulary of %d\n", FindGpu().name, kVocabSize);
  const Case cases[] = {
      {"greedy", Request(0, 0, 1, -1)},
      {"greedy, logprobs=5", Request(0, 0, 1, 5)},
      {"temperature=1", Request(1, 0, 1, -1)},
      {"temperature=0.7, top_p=0.95", Request(0.7f, 0, 0.95f, -1)},
      {"temperature=0.7, top_k=50", Request(0.7f, 50, 1, -1)},
      {"temperature=0.7, top_k=1000", Request(0.7f, 1000, 1, -1)},
      {"temperature=0.7, top_k=50, top_p=0.9", Request(0.7f, 50, 0.9f, -1)},
      {"the same, all logits equal", Request(0.7f, 50, 0.9f, -1), 0},
  };
  for (const Case& c : cases) {
    for (const int count : {1, 64, 256}) Run(c, count);
  }
  return 0;
}

}  // namespace
}  // namespace ziggurat::cuda

int main() { return ziggurat::cuda::Main(); }

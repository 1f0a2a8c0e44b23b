// The whole engine on a device and on the CPU: requests of many policies, greedy and drawn, come
// while others run, and get the same tokens.
#include <gtest/gtest.h>

#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "attention/cuda/device.h"
#include "model/cuda/cuda_decoder.h"
#include "scheduler/engine.h"
#include "tests/model/decoder_harness.h"
#include "tests/model/plain_llama.h"
#include "tests/support/files.h"
#include "tests/support/policies.h"

namespace ziggurat::testing {
namespace {

constexpr char kConfig[] = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "hidden_size":48,"intermediate_size":72,"num_hidden_layers":4,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":16,"vocab_size":300,"max_position_embeddings":512,
  "rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})";

const DecoderOptions kOptions = {.element = ElementType::kF32,
                                 .threads = 1,
                                 .max_prefill_tokens = 120,
                                 .short_prefill_tokens = 20,
                                 .chunk_tokens = 64,
                                 .warm_up = false};

EngineRequest MakeRequest(int i, const std::string& policy) {
  EngineRequest request;
  request.name = std::to_string(i);
  // Every fourth is short enough to run beside a longer one.
  const int tokens = i % 4 == 3 ? 9 + i % 7 : 25 + 13 * (i % 5);
  for (int t = 0; t < tokens; ++t) request.prompt.push_back((7 * i + 11 * t * t) % 300);
  request.policy = MustParse(policy);
  request.max_new_tokens = 20 + i % 7;
  if (i % 3 == 1) {
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 100 + i;
    request.sampling.top_p = 0.9f;
    request.sampling.repetition_penalty = 1.2f;
    request.sampling.logprobs = 3;
  }
  if (i % 3 == 2) {
    request.sampling.temperature = 1.3f;
    request.sampling.seed = i;
    request.sampling.top_k = 7;
    request.stop_token_ids = {3, 5};
    request.min_new_tokens = 20;
  }
  return request;
}

std::vector<EngineRequest> MakeRequests() {
  std::vector<EngineRequest> requests;
  for (const std::string& policy : PoliciesOfAllMethods()) {
    requests.push_back(MakeRequest(static_cast<int>(requests.size()), policy));
  }
  return requests;
}

bool HasCodes(const std::string& policy) {
  return absl::c_any_of(std::vector<const char*>{"kivi", "int8", "fp8"},
                        [&](const char* name) { return absl::StrContains(policy, name); });
}

struct Answer {
  bool has_codes = false;
  bool is_drawn = false;
  std::vector<SampledToken> tokens;
  size_t blocks = 0;
  absl::Status status;
};

/// All requests at once, so that most wait for room; by the order in which they were submitted.
std::map<RequestId, Answer> AnswersOf(std::unique_ptr<ModelRunner> runner) {
  EngineOptions options;
  options.kv_cache_bytes = size_t{1} << 20;
  options.max_running = 8;
  options.max_prompt_tokens = 120;
  options.device_slice_token_layers = 1;  // a layer of one lane, then one of the other
  options.check_every_step = true;
  Metrics metrics;
  auto engine = Engine::Create(options, std::move(runner), &metrics);
  EXPECT_TRUE(engine.ok()) << engine.status();
  std::map<RequestId, Answer> answers;
  if (!engine.ok()) return answers;
  for (EngineRequest& request : MakeRequests()) {
    const bool has_codes = HasCodes(request.policy->ToString());
    const bool is_drawn = request.sampling.temperature > 0;
    const auto id = (*engine)->Submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) continue;
    answers[*id].has_codes = has_codes;
    answers[*id].is_drawn = is_drawn;
  }
  size_t finished = 0;
  std::vector<EngineOutput> outputs;
  while (finished < answers.size() && (*engine)->NextOutputs(&outputs)) {
    for (EngineOutput& output : outputs) {
      Answer& answer = answers[output.id];
      for (SampledToken& token : output.tokens) answer.tokens.push_back(std::move(token));
      if (output.result == nullptr) continue;
      ++finished;
      answer.status = output.result->status;
      answer.blocks = output.result->cache.blocks;
    }
    outputs.clear();
  }
  EXPECT_TRUE((*engine)->WaitIdle(absl::Seconds(10)));
  (*engine)->Stop();  // and its pool proves that every block came back
  return answers;
}

TEST(CudaEngine, AnswersAsTheCpuDoes) {
  const TemporaryFolder folder;
  WriteTinyModel(folder.path(), kConfig, 7);
  auto on_cpu = LoadLlamaDecoder(folder.path(), kOptions, MakeBestBackend(1));
  auto on_device = LoadCudaDecoder(folder.path(), {.decoder = kOptions, .max_sequences = 8});
  ASSERT_TRUE(on_cpu.ok() && on_device.ok()) << on_cpu.status() << on_device.status();
  EXPECT_TRUE((*on_device)->is_asynchronous());
  const auto expected = AnswersOf(*std::move(on_cpu));
  const auto actual = AnswersOf(*std::move(on_device));
  ASSERT_EQ(actual.size(), expected.size());
  const bool is_emulated = cuda::OpenDevice(0)->name == "the emulator";
  size_t tokens = 0, tokens_of_codes = 0;
  for (const auto& [id, answer] : expected) {
    const Answer& other = actual.at(id);
    // Sums round differently, most of all on a GPU, and a number at the border of two codes may
    // become either: another token, where one is drawn or on a GPU, ends the comparison.
    const bool is_loose = answer.has_codes && (answer.is_drawn || !is_emulated);
    const double tolerance = is_loose ? 5e-2 : 1e-3;
    EXPECT_EQ(other.status, absl::OkStatus()) << id;
    EXPECT_EQ(other.blocks, answer.blocks) << id;
    ASSERT_EQ(other.tokens.size(), answer.tokens.size()) << id;
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const SampledToken &token = answer.tokens[i], &of_device = other.tokens[i];
      if (is_loose && of_device.token_id != token.token_id) break;
      EXPECT_EQ(of_device.token_id, token.token_id) << id << ", token " << i;
      EXPECT_NEAR(of_device.logprob, token.logprob, tolerance) << id << ", token " << i;
      EXPECT_EQ(of_device.top.size(), token.top.size()) << id;
      ++(answer.has_codes ? tokens_of_codes : tokens);
    }
  }
  EXPECT_GT(tokens, 300u);
  EXPECT_GT(tokens_of_codes, 20u);
}

}  // namespace
}  // namespace ziggurat::testing

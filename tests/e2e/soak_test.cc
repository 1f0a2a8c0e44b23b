// Many requests of every kind, many at a time, some given up half way: nothing is left behind.
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/e2e/random_policy.h"
#include "tests/e2e/testing.h"
#include "tests/support/raw_calls.h"

namespace ziggurat::e2e {
namespace {

constexpr int kClients = 64;

struct SoakRequest {
  v1::GenerateRequest message;
  std::optional<absl::Duration> deadline;
  int cancel_after_messages = -1;  ///< -1: never; 0: as soon as the call is made
};

SoakRequest RandomRequest(const PromptSource& prompts, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(0, 1);
  const int prompt_tokens = static_cast<int>(std::exp(unit(random) * std::log(1500.0)));
  SoakRequest request;
  request.message = IdRequest(prompts.Make(std::max(1, prompt_tokens), random),
                              1 + static_cast<int>(random() % 64), AtEos::kGoOn);
  request.message.set_ignore_eos(random() % 2 == 0);
  // Sometimes the daemon's own.
  if (random() % 5 != 0) request.message.set_compression(RandomPolicy(random));
  if (random() % 2 == 0) {
    v1::SamplingParameters* sampling = request.message.mutable_sampling();
    sampling->set_temperature(static_cast<float>(unit(random) * 2));
    sampling->set_top_k(static_cast<int>(random() % 50));
    sampling->set_top_p(static_cast<float>(0.1 + 0.9 * unit(random)));
    sampling->set_seed(random());
  }
  if (random() % 4 == 0) request.message.add_stop("near");
  if (random() % 4 == 0) request.message.set_logprobs(static_cast<int>(random() % 21));
  const double fate = unit(random);
  if (fate < 0.2) {
    request.cancel_after_messages = static_cast<int>(random() % 20);
  } else if (fate < 0.4) {
    request.deadline = absl::Milliseconds(1 + std::exp(unit(random) * std::log(5000.0)));
  }
  return request;
}

Generation RunSoakRequest(Daemon& daemon, const SoakRequest& request) {
  CallOptions options;
  options.deadline = request.deadline;
  int messages = 0;
  options.context = std::make_shared<grpc::ClientContext>();
  if (request.cancel_after_messages == 0) options.context->TryCancel();
  options.on_message = [&](const Generation&) {
    return request.cancel_after_messages < 0 || ++messages < request.cancel_after_messages;
  };
  return Generate(daemon, request.message, options);
}

/// A request may end only as it was meant to.
void ExpectExplained(const SoakRequest& request, const Generation& generation) {
  switch (generation.status.error_code()) {
    case grpc::StatusCode::OK:
      EXPECT_TRUE(generation.result.has_value()) << generation.Describe();
      EXPECT_EQ(generation.messages_after_result, 0);
      break;
    case grpc::StatusCode::CANCELLED:
      EXPECT_GE(request.cancel_after_messages, 0) << generation.Describe();
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      EXPECT_TRUE(request.deadline.has_value()) << generation.Describe();
      break;
    default:
      ADD_FAILURE() << generation.Describe() << "\n"
                    << request.message.compression() << ", "
                    << request.message.token_ids().ids_size() << " prompt tokens";
  }
}

TEST(Soak, NothingIsLeftOfManyRequestsOfEveryKind) {
  const int requests = IsSoak() ? 2000 : 200;
  const TemporaryFolder folder;
  std::vector<std::string> flags = PodGroupFlags(folder.path());
  flags.insert(flags.end(), {"--check-integrity", "--compression", "pyramidkv(budget=128)"});
  // Room for some 15 of the largest requests, so that others wait.
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = "48MiB", .flags = flags});
  const PromptSource prompts(daemon);
  std::mt19937 first_random(1);
  v1::GenerateRequest probe = IdRequest(prompts.Make(400, first_random), 16, AtEos::kGoOn);
  const Generation before = Generate(daemon, probe);
  ASSERT_TRUE(before.ok()) << before.Describe();

  std::atomic<int> next = 0;
  std::mutex mutex;
  std::map<std::string, int> outcomes;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (int i = next++; i < requests; i = next++) {
        std::mt19937 random(1000 + static_cast<uint32_t>(i));
        const SoakRequest request = RandomRequest(prompts, random);
        const Generation generation = RunSoakRequest(daemon, request);
        const std::lock_guard lock(mutex);
        ExpectExplained(request, generation);
        ++outcomes[absl::StrCat("code ", static_cast<int>(generation.status.error_code()))];
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& [outcome, count] : outcomes) std::printf("%s: %d\n", outcome.c_str(), count);

  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(CheckHealth(daemon.channel(), ""), "SERVING");
  const Generation after = Generate(daemon, probe);
  EXPECT_TRUE(after.ok()) << after.Describe();
  EXPECT_EQ(after.token_ids, before.token_ids);
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(daemon.Stop(), std::optional<int>(0)) << daemon.log();
  EXPECT_THAT(daemon.LoggedErrors(), testing::IsEmpty());
  // All kinds of ends did occur.
  EXPECT_GT(outcomes["code 0"], requests / 3);
  EXPECT_GT(outcomes["code 1"], 0);
  EXPECT_GT(outcomes["code 4"], 0);
}

}  // namespace
}  // namespace ziggurat::e2e

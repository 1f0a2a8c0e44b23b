// Requests with policies of every kind side by side, some given up half way: no block is lost, and
// every answer is the one that the request gets alone.
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/random_policy.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kClients = 32;
// docs/architecture.md, "Same answer": a comparison may end where the two best logits are this
// near, or where a selection, a code or a threshold was as near to its cut, which cannot be seen
// from outside. All ends together are counted.
double MaxEndShare() { return ComputesOnGpu() ? 0.05 : 0.02; }

struct MixedRequest {
  v1::GenerateRequest message;
  int cancel_after_messages = -1;  ///< -1: never
};

MixedRequest MakeRequest(const PromptSource& prompts, int index) {
  std::mt19937 random(7000 + static_cast<uint32_t>(index));
  std::uniform_real_distribution<double> exponent(std::log(2.0), std::log(1500.0));
  MixedRequest request;
  const int tokens = static_cast<int>(std::exp(exponent(random)));
  request.message =
      IdRequest(prompts.Make(tokens, random), 1 + static_cast<int>(random() % 60), AtEos::kGoOn);
  request.message.set_compression(RandomPolicy(random));
  request.message.set_logprobs(2);
  if (random() % 6 == 0) request.cancel_after_messages = static_cast<int>(random() % 20);
  return request;
}

Generation RunMixed(Daemon& daemon, const MixedRequest& request, bool cancels) {
  CallOptions options;
  options.context = std::make_shared<grpc::ClientContext>();
  int messages = 0;
  options.on_message = [&](const Generation&) {
    return !cancels || request.cancel_after_messages < 0 ||
           ++messages <= request.cancel_after_messages;
  };
  return Generate(daemon, request.message, options);
}

/// The step at which two answers part, or -1. `near_tie`: whether the two best were within 1e-3.
int PartingStep(const Generation& a, const Generation& b, bool* near_tie) {
  for (size_t i = 0; i < std::min(a.token_ids.size(), b.token_ids.size()); ++i) {
    if (a.token_ids[i] == b.token_ids[i]) continue;
    const v1::TokenLogprobs& step = a.logprobs[i];
    *near_tie = step.top_size() > 1 && step.top(0).logprob() - step.top(1).logprob() < 1e-3;
    return static_cast<int>(i);
  }
  return -1;
}

TEST(MixedLoad, EveryPolicySideBySideAnswersAsAlone) {
  const int requests = IsSoak() ? 1000 : 130;
  const TemporaryFolder folder;
  std::vector<std::string> flags = PodGroupFlags(folder.path());
  flags.push_back("--check-integrity");
  START_DAEMON(daemon, {.dtype = "f32", .kv_cache_memory = "96MiB", .flags = flags});
  const PromptSource prompts(daemon);
  std::vector<Generation> crowded(requests);
  std::atomic<int> next = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (int i = next++; i < requests; i = next++) {
        crowded[i] = RunMixed(daemon, MakeRequest(prompts, i), true);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EMPTY_CACHE(daemon);

  int compared = 0, steps = 0, cancelled = 0, near_ties = 0, other_ends = 0;
  std::map<std::string, int> policies;
  for (int i = 0; i < requests; ++i) {
    const MixedRequest request = MakeRequest(prompts, i);
    const std::string& policy = request.message.compression();
    SCOPED_TRACE(absl::StrCat("request ", i, ", ", policy));
    ++policies[policy.substr(0, policy.find('('))];
    if (!crowded[i].ok()) {
      ASSERT_EQ(crowded[i].status.error_code(), grpc::StatusCode::CANCELLED)
          << crowded[i].Describe();
      ASSERT_GE(request.cancel_after_messages, 0) << crowded[i].Describe();
      ++cancelled;
    }
    const Generation alone = RunMixed(daemon, request, false);
    ASSERT_TRUE(alone.ok()) << alone.Describe();
    bool near_tie = false;
    const int parting = PartingStep(alone, crowded[i], &near_tie);
    ++compared;
    steps += parting >= 0 ? parting : static_cast<int>(crowded[i].token_ids.size());
    if (parting >= 0) {
      ++(near_tie ? near_ties : other_ends);
      std::printf("request %d parts at step %d%s: %s, %d prompt tokens\n", i, parting,
                  near_tie ? " (near-tie)" : "", policy.c_str(),
                  request.message.token_ids().ids_size());
    }
  }
  std::printf(
      "%d requests of %zu kinds, %d cancelled, %d steps compared, %d ended at a near-tie, "
      "%d elsewhere\n",
      compared, policies.size(), cancelled, steps, near_ties, other_ends);
  EXPECT_LE(near_ties + other_ends, MaxEndShare() * compared);
  EXPECT_GT(cancelled, 0);
  EXPECT_GE(policies.size(), 9u);
  EXPECT_EMPTY_CACHE(daemon);
  EXPECT_EQ(daemon.Stop(), std::optional<int>(0)) << daemon.log();
  EXPECT_THAT(daemon.LoggedErrors(), testing::IsEmpty());
}

}  // namespace
}  // namespace ziggurat::e2e

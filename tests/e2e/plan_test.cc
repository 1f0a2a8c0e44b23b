// `ziggurat plan` against what a daemon with the planned pool then really runs at once.
#include <atomic>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/process_memory.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

/// The figure that a plan is good for.
constexpr double kTolerance = 0.03;
constexpr char kPool[] = "160MiB";

json Plan(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"plan", "--model", NeedleLlama(), "--dtype", "bf16", "--json"});
  const CommandResult result = RunZiggurat(flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

struct Size {
  int prompt = 0;
  int answer = 0;
};

/// Requests on their way to one daemon, in the order in which they are added.
class Crowd {
 public:
  Crowd(Daemon& daemon, const PromptSource& prompts, std::string policy)
      : daemon_(daemon), prompts_(prompts), policy_(std::move(policy)) {}
  ~Crowd() {
    for (const auto& context : contexts_) context->TryCancel();
    for (std::thread& thread : threads_) thread.join();
    EXPECT_EMPTY_CACHE(daemon_);
  }

  void Add(const Size& size) {
    v1::GenerateRequest request =
        IdRequest(prompts_.Make(size.prompt, random_), size.answer, AtEos::kGoOn);
    request.set_compression(policy_);
    contexts_.push_back(std::make_shared<grpc::ClientContext>());
    threads_.emplace_back([this, context = contexts_.back(), request = std::move(request)] {
      const Generation generation = Generate(daemon_, request, {.context = context});
      if (generation.ok()) ++finished_;
    });
  }
  /// A look at so many requests may be nearly that old.
  static constexpr absl::Duration kStale = absl::Milliseconds(1500);
  /// How many run once nobody is let in any more: some wait, and every prompt is there.
  int AwaitFull() {
    int running = 0;
    absl::Time since = absl::Now();
    const bool full = PollUntil(absl::Seconds(120), [&] {
      absl::SleepFor(absl::Milliseconds(20));
      const v1::GetCacheResponse cache = daemon_.GetCache();
      const bool settled =
          cache.waiting() > 0 &&
          std::none_of(cache.requests().begin(), cache.requests().end(),
                       [](const auto& request) { return request.state() == "prefilling"; });
      if (!settled || static_cast<int>(cache.running()) != running) since = absl::Now();
      running = static_cast<int>(cache.running());
      return absl::Now() - since > kStale;
    });
    EXPECT_TRUE(full) << running << " are running and nobody waits";
    EXPECT_EQ(finished_, 0) << "a request ended before admission stopped: the count means nothing";
    return running;
  }
  /// Whether the last one that was added runs, too, or waits.
  bool LastIsLetIn() {
    bool let_in = false;
    const bool is_known = PollUntil(absl::Seconds(60), [&] {
      const v1::GetCacheResponse cache = daemon_.GetCache();
      if (cache.running() + cache.waiting() != threads_.size()) return false;
      // Who is let in may wait for others' prompts, but has its blocks.
      let_in = std::all_of(
          cache.requests().begin(), cache.requests().end(),
          [](const auto& request) { return request.blocks() + request.reserved_blocks() > 0; });
      // Prompts may leave room when they have been read.
      return let_in ||
             std::all_of(cache.requests().begin(), cache.requests().end(), [](const auto& request) {
               return request.state() == "decoding" ||
                      (request.state() == "waiting" && request.reserved_blocks() == 0);
             });
    });
    EXPECT_TRUE(is_known) << "waited for " << threads_.size() << " requests to be let in or not";
    return let_in;
  }
  int size() const { return static_cast<int>(threads_.size()); }

 private:
  Daemon& daemon_;
  const PromptSource& prompts_;
  std::string policy_;
  std::mt19937 random_{3};
  std::vector<std::shared_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::thread> threads_;
  std::atomic<int> finished_ = 0;
};

/// The share of the layers that such a request finds lazy, by the daemon's own report.
double LazyShare(Daemon& daemon, const PromptSource& prompts, const std::string& policy,
                 int prompt) {
  std::mt19937 random(3);
  v1::GenerateRequest probe = IdRequest(prompts.Make(prompt, random), 3, AtEos::kGoOn);
  probe.set_compression(policy);
  const Generation generation = Generate(daemon, probe);
  EXPECT_TRUE(generation.ok()) << generation.Describe();
  if (!generation.ok()) return 0;
  const auto& layers = generation.result->cache().layers();
  const auto lazy =
      std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.lazy(); });
  return static_cast<double>(lazy) / static_cast<double>(layers.size());
}

struct PolicyCase {
  const char* policy;
  Size size;
};

TEST(PlanFigure, SoManyRequestsRunAtOnceAsWerePlanned) {
  // Answers so long that none ends while the others come in; they are cancelled then.
  constexpr Size kUsual = {700, 1500};
  const PolicyCase cases[] = {{"full", kUsual},
                              {"full", {300, 1200}},
                              {"streaming", kUsual},
                              {"snapkv(budget=256)", kUsual},
                              {"pyramidkv(budget=256,window=32)", kUsual},
                              {"windowkv(budget=256,task=localization)", kUsual},
                              {"h2o(heavy=512,recent=512)", kUsual},
                              {"squeeze(budget=512)", kUsual},
                              {"kivi(bits=4)", {1500, 1500}},
                              {"int8", kUsual},
                              {"minicache", {1000, 1500}},
                              {"simlayerkv(threshold=0.5,recent=252)", kUsual},
                              {"pyramidkv(budget=256,window=32)+kivi(bits=4)", {1000, 3000}}};
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = kPool});
  const PromptSource prompts(daemon);
  for (const auto& [policy, size] : cases) {
    SCOPED_TRACE(policy);
    std::vector<std::string> flags = {"--kv-cache-memory", kPool,
                                      "--input-tokens",    absl::StrCat(size.prompt),
                                      "--output-tokens",   absl::StrCat(size.answer),
                                      "--compression",     policy};
    double lazy = 0;
    if (absl::StrContains(policy, "simlayerkv")) {
      lazy = LazyShare(daemon, prompts, policy, size.prompt);
      flags.insert(flags.end(), {"--lazy-layers", absl::StrCat(lazy)});
    }
    const json plan = Plan(flags);
    ASSERT_FALSE(plan.is_null());
    ASSERT_EQ(plan["pool"]["blocks"], daemon.GetCache().total_blocks());
    const json& row = plan["policies"][0];
    const double planned = row["at_once"]["mean"];
    ASSERT_GT(planned, 20);
    Crowd crowd(daemon, prompts, policy);
    while (crowd.size() < 1.1 * planned + 4) crowd.Add(size);
    const int running = crowd.AwaitFull();
    std::printf("%-46s %4d + %3d: planned %5.1f, ran %3d (%+.1f %%)%s\n", policy, size.prompt,
                size.answer, planned, running, 100 * (running - planned) / planned,
                lazy > 0 ? absl::StrCat(", ", lazy, " of the layers lazy").c_str() : "");
    EXPECT_NEAR(running, planned, kTolerance * planned);
  }
}

TEST(PlanFigure, SoManyRequestsOfATraceRunAtOnceAsWerePlanned) {
  std::vector<Size> sizes;
  std::string trace;
  std::mt19937 random(11);
  for (int i = 0; i < 12; ++i) {
    sizes.push_back(
        {100 + static_cast<int>(random() % 900), 2000 + static_cast<int>(random() % 1000)});
    absl::StrAppend(&trace, "{\"timestamp\": ", 1000 * i, ", \"input_length\": ", sizes[i].prompt,
                    ", \"output_length\": ", sizes[i].answer, "}\n");
  }
  const TemporaryFolder folder;
  WriteFile(folder / "trace.jsonl", trace);
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = kPool});
  const PromptSource prompts(daemon);
  for (const std::string policy : {"full", "pyramidkv(budget=128,window=16)"}) {
    const json plan = Plan(
        {"--kv-cache-memory", kPool, "--trace", folder / "trace.jsonl", "--compression", policy});
    ASSERT_FALSE(plan.is_null());
    const double planned = plan["policies"][0]["at_once"]["mean"];
    Crowd crowd(daemon, prompts, policy);
    do {
      crowd.Add(sizes[crowd.size() % sizes.size()]);
    } while (crowd.LastIsLetIn() && crowd.size() < 3 * planned);
    const int running = crowd.size() - 1;
    std::printf("%-46s     trace: planned %5.1f, ran %3d (%+.1f %%)\n", policy.c_str(), planned,
                running, 100 * (running - planned) / planned);
    EXPECT_NEAR(running, planned, kTolerance * planned + 1) << "a trace is a few requests long";
  }
}

// Where lengths differ, those with long answers stay longer, and so fewer run than came in at
// first.
TEST(PlanFigure, SoManyRequestsRunOnAndOnAsWerePlanned) {
  const std::vector<std::string> lengths = {"--input-tokens", "p50:200,p100:900", "--output-tokens",
                                            "mean:120:600"};
  std::vector<std::string> flags = {"--kv-cache-memory", "32MiB", "--compression",
                                    "pyramidkv(budget=256)"};
  flags.insert(flags.end(), lengths.begin(), lengths.end());
  const json plan = Plan(flags);
  ASSERT_FALSE(plan.is_null());
  const double planned = plan["policies"][0]["at_once"]["sustained"];
  START_DAEMON(daemon, {.dtype = "bf16",
                        .kv_cache_memory = "32MiB",
                        .flags = {"--compression", "pyramidkv(budget=256)"}});
  const TemporaryFolder folder;
  const int clients = static_cast<int>(1.3 * planned);
  std::vector<std::string> bench = {"bench",      "serve",
                                    "--server",   daemon.grpc_address(),
                                    "--clients",  absl::StrCat(clients),
                                    "--requests", absl::StrCat((IsSoak() ? 40 : 12) * clients),
                                    "--out",      folder.path()};
  bench.insert(bench.end(), lengths.begin(), lengths.end());
  const CommandResult load = RunZiggurat(bench, {}, absl::Minutes(20));
  ASSERT_EQ(load.exit_code, 0) << load.err;
  const json samples = json::parse(ReadFile(folder / "result.json"))["cache"]["samples"];
  // From when the first ones have gone until the last one has come in.
  double sum = 0, count = 0;
  const double end = samples.back()["seconds"];
  for (const json& sample : samples) {
    if (sample["waiting"] == 0 || sample["seconds"] < 0.2 * end) continue;
    sum += sample["running"].get<double>();
    ++count;
  }
  ASSERT_GT(count, 10);
  const double ran = sum / count;
  std::printf("planned %.1f at once on and on, ran %.1f in %.0f looks (%+.1f %%)\n", planned, ran,
              count, 100 * (ran - planned) / planned);
  EXPECT_NEAR(ran, planned, 0.1 * planned) << "a few hundred requests, so that they differ";
}

TEST(PlanFigure, TheDaemonTakesTheMemoryThatWasPlanned) {
  constexpr char kSmall[] = "64MiB";
  START_DAEMON(daemon, {.dtype = "bf16", .kv_cache_memory = kSmall});
  if (daemon.is_sanitized()) GTEST_SKIP() << "a sanitizer's memory is its own";
  const json plan = Plan({"--kv-cache-memory", kSmall, "--input-tokens", "700", "--output-tokens",
                          "500", "--compression", "full"});
  ASSERT_FALSE(plan.is_null());
  const PromptSource prompts(daemon);
  {
    Crowd crowd(daemon, prompts, "full");
    while (crowd.size() < 40) crowd.Add({700, 500});
    // Blocks that are reserved are not resident yet.
    EXPECT_TRUE(PollUntil(absl::Seconds(120), [&] {
      const v1::GetCacheResponse cache = daemon.GetCache();
      return cache.high_water_blocks() * 100 > cache.total_blocks() * 95;
    })) << "the pool was never full";
  }
  const auto resident = static_cast<double>(ResidentBytes(daemon.pid()));
  const json& memory = plan["memory"];
  // Of 256 that may run and 1,024 that may wait there were 40.
  const double planned = memory["total_bytes"].get<double>() -
                         memory["requests_bytes"].get<double>() * (1280 - 40) / 1280;
  std::printf("planned %.0f MiB, resident %.0f MiB (%+.1f %%)\n", planned / (1 << 20),
              resident / (1 << 20), 100 * (resident - planned) / planned);
  EXPECT_NEAR(resident, planned, 0.1 * planned);
}

TEST(Plan, SaysWhatIsWrongWithWhatItIsAsked) {
  const std::string model = NeedleLlama();
  const auto expect = [&](std::vector<std::string> flags, int exit_code, const std::string& words) {
    flags.insert(flags.begin(), "plan");
    const CommandResult result = RunZiggurat(flags);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr(words));
  };
  expect({}, 2, "--model");
  expect({"--model", "/no/such"}, 1, "/no/such");
  expect({"--model", model, "--memory", "much"}, 2, "--memory: 'much' is no size");
  expect({"--model", model, "--memory", "20MiB"}, 1, "are left for the KV cache");
  for (const char* little : {"0", "4KiB"}) {
    expect({"--model", model, "--kv-cache-memory", little}, 2,
           absl::StrCat("--kv-cache-memory is '", little,
                        "': must be from 32768 bytes, a block of 4096 for each of 8 layers"));
  }
  expect({"--model", model, "--memory", "1GiB", "--kv-cache-memory", "2GiB"}, 1,
         "in all, of 1 GiB");
  expect({"--model", model, "--input-tokens", "long"}, 2, "--input-tokens: 'long' is no length");
  expect({"--model", model, "--compression", "snap"}, 2, "--compression: ");
  expect({"--model", model, "--rate", "3"}, 2, "--request-seconds");
  expect({"--model", model, "--rate", "2000", "--request-seconds", "60"}, 2,
         "requests at once; at most 65536");
  expect({"--model", model, "--trace", "/no/trace"}, 1, "/no/trace");
  expect({"--model", model, "--trace", "/no/trace", "--input-tokens", "5"}, 2, "--input-tokens");
  expect({"--model", model, "--length-scale", "2"}, 2, "--trace");
  expect({"--model", model, "--spare", "nan"}, 2, "'nan' must be a number from 0 to 90");
}

TEST(Plan, ALimitIsReservedAndEndsLongerAnswers) {
  const json plan = Plan({"--output-tokens", "uniform:100:900", "--input-tokens", "200",
                          "--max-tokens", "300", "--compression", "full"});
  ASSERT_FALSE(plan.is_null());
  EXPECT_EQ(plan["traffic"]["answer_tokens"]["max"], 300);
  EXPECT_EQ(plan["traffic"]["usual"]["reserved_tokens"], 300);
  // 200 + 299 tokens in 8 layers, 16 of them in a block.
  EXPECT_EQ(plan["policies"][0]["request"]["admitted_blocks"], 8 * 32);
}

TEST(Plan, PoliciesThatTestLayersAreShownForBothEnds) {
  const std::string policies[] = {"simlayerkv", "simlayerkv(decide=decode)", "full"};
  std::vector<std::string> flags = {"--input-tokens", "2000", "--output-tokens", "100",
                                    "--clients",      "4"};
  for (const std::string& policy : policies) {
    flags.insert(flags.end(), {"--compression", policy});
  }
  const json plan = Plan(flags);
  ASSERT_FALSE(plan.is_null());
  for (size_t i = 0; i < 3; ++i) {
    const json& row = plan["policies"][i];
    const bool tests_layers = policies[i] != "full";
    EXPECT_EQ(row["policy"], policies[i]);
    ASSERT_EQ(row.contains("request_if_lazy"), tests_layers) << row;
    ASSERT_EQ(row.contains("kv_cache_bytes_for_clients_if_lazy"), tests_layers) << row;
    if (!tests_layers) continue;
    EXPECT_LT(row["request_if_lazy"]["blocks"], row["request"]["blocks"]) << row;
    EXPECT_LT(row["kv_cache_bytes_for_clients_if_lazy"], row["kv_cache_bytes_for_clients"]) << row;
  }
}

// The ring of a lazy layer may be larger than what others keep: it does not count for these.
TEST(Plan, LayersThatAreNotLazyKeepWhatTheOtherPolicySelects) {
  const json plan = Plan({"--input-tokens", "2000", "--output-tokens", "100", "--compression",
                          "simlayerkv+snapkv(budget=256)", "--compression", "snapkv(budget=256)",
                          "--compression", "streaming"});
  ASSERT_FALSE(plan.is_null());
  const json& either = plan["policies"][0];
  EXPECT_EQ(either["request"]["blocks"], plan["policies"][1]["request"]["blocks"]);
  EXPECT_EQ(either["request_if_lazy"]["blocks"], plan["policies"][2]["request"]["blocks"]);
  EXPECT_GT(either["request_if_lazy"]["blocks"], either["request"]["blocks"]);
}

/// A plan for a pool of 16 MiB and requests of 10 + 5 tokens, of which `large` of every 100 have
/// 1,900,000 tokens, which no such pool holds.
json PlanWithLarge(int large) {
  const TemporaryFolder folder;
  json config = json::parse(ReadFile(NeedleLlama() / "config.json"));
  config["max_position_embeddings"] = 2000000;
  WriteFile(folder / "config.json", config.dump());
  std::string trace;
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&trace, "{\"timestamp\": ", 1000 * i,
                    ", \"input_length\": ", i < large ? 1900000 : 10, ", \"output_length\": 5}\n");
  }
  WriteFile(folder / "trace.jsonl", trace);
  const CommandResult result =
      RunZiggurat({"plan", "--model", folder.path(), "--json", "--compression", "full",
                   "--kv-cache-memory", "16MiB", "--trace", folder / "trace.jsonl"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out)["policies"][0]["at_once"] : json();
}

TEST(Plan, RequestsThatNeverFitTakeNothingFromTheOthers) {
  const json none = PlanWithLarge(0);
  ASSERT_FALSE(none.is_null());
  // A block of 4 KiB in each of 8 layers.
  EXPECT_EQ(none["mean"], 512);
  for (const int large : {2, 20, 75}) {
    const json some = PlanWithLarge(large);
    ASSERT_FALSE(some.is_null());
    EXPECT_EQ(some["mean"], none["mean"]) << large;
    EXPECT_NEAR(some["sustained"], none["sustained"], 1) << large;
    EXPECT_NEAR(some["never_fits_share"], large / 100., 0.03) << large;
  }
}

TEST(Plan, TheSuggestedPoolHoldsTheOneRequestWithALongAnswer) {
  const TemporaryFolder folder;
  std::string trace;
  for (int i = 0; i < 4000; ++i) {
    absl::StrAppend(&trace, "{\"timestamp\": ", 1000 * i,
                    ", \"input_length\": ", i == 3000 ? 300 : 3900,
                    ", \"output_length\": ", i == 3000 ? 1200 : 10, "}\n");
  }
  WriteFile(folder / "trace.jsonl", trace);
  const char* policy = "snapkv(budget=256)";
  const json all =
      Plan({"--trace", folder / "trace.jsonl", "--clients", "1", "--compression", policy});
  const json one =
      Plan({"--input-tokens", "300", "--output-tokens", "1200", "--compression", policy});
  ASSERT_FALSE(all.is_null() || one.is_null());
  EXPECT_EQ(all["policies"][0]["kv_cache_bytes_for_clients"].get<uint64_t>(),
            one["policies"][0]["request"]["admitted_blocks"].get<uint64_t>() *
                one["pool"]["block_bytes"].get<uint64_t>());
}

TEST(Plan, NothingOfTheTrafficIsTooLargeForThePoolThatIsSuggested) {
  const std::vector<std::string> flags = {"--input-tokens",  "p50:100,p95:300,p100:3900",
                                          "--output-tokens", "50",
                                          "--compression",   "full"};
  for (const char* clients : {"1", "2", "4"}) {
    std::vector<std::string> first = flags;
    first.insert(first.end(), {"--clients", clients});
    const json plan = Plan(first);
    ASSERT_FALSE(plan.is_null());
    const uint64_t pool = plan["policies"][0]["kv_cache_bytes_for_clients"];
    std::vector<std::string> second = flags;
    second.insert(second.end(), {"--kv-cache-memory", absl::StrCat(pool)});
    const json again = Plan(second);
    ASSERT_FALSE(again.is_null());
    EXPECT_EQ(again["policies"][0]["at_once"]["never_fits_share"], 0) << clients;
  }
}

TEST(Plan, SuggestsWhatIsLeftOnlyWhereThePoolIsThat) {
  const std::string model = NeedleLlama();
  const auto suggested = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"plan", "--model", model});
    const CommandResult result = RunZiggurat(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.find("what is left of 4 GiB") != std::string::npos;
  };
  EXPECT_TRUE(suggested({"--memory", "4GiB"}));
  EXPECT_FALSE(suggested({"--memory", "4GiB", "--kv-cache-memory", "64MiB"}));
}

TEST(Plan, NeedsNoMoreThanConfigJson) {
  const TemporaryFolder folder;
  std::filesystem::copy(NeedleLlama() / "config.json", folder / "config.json");
  const CommandResult result =
      RunZiggurat({"plan", "--model", folder.path(), "--memory", "2GiB", "--clients", "50"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* words : {"pyramidkv(budget=512)+kivi(bits=4)", "KV cache", "--kv-cache-memory ",
                            "50 requests run at once with full", "at once"}) {
    EXPECT_THAT(result.out, testing::HasSubstr(words));
  }
}

}  // namespace
}  // namespace ziggurat::e2e

// The page and its JSON, asked of a daemon around the stub model; and the history behind its lines.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "server/message_json.h"
#include "server/messages.h"
#include "server/page/history.h"
#include "server/page/page_data.h"
#include "server/version.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/poll.h"

namespace ziggurat {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;

httplib::Result Get(StubDaemon& daemon, const std::string& path) {
  return httplib::Client("127.0.0.1", daemon.daemon().http_port()).Get(path);
}

Json GetJson(StubDaemon& daemon, const std::string& path) {
  const httplib::Result answer = Get(daemon, path);
  EXPECT_EQ(answer->status, 200) << path;
  EXPECT_EQ(answer->get_header_value("Content-Type"), "application/json");
  return Json::parse(answer->body);
}

/// A request that decodes slowly until it goes out of scope.
class SlowRequest {
 public:
  SlowRequest(StubDaemon& daemon, const std::string& name, const std::string& policy)
      : daemon_(daemon) {
    daemon.control().decode_delay_us = 20'000;
    v1::GenerateRequest request = IdRequest(std::vector<int32_t>(300, 9), 3000);
    request.set_request_id(name);
    request.set_compression(policy);
    stream_ = daemon.stub().Generate(&context_, request);
    v1::GenerateResponse response;
    EXPECT_TRUE(stream_->Read(&response));
  }
  ~SlowRequest() {
    context_.TryCancel();
    daemon_.control().decode_delay_us = 0;
    daemon_.WaitIdle();
  }

 private:
  StubDaemon& daemon_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> stream_;
};

/// The first state of which `condition` is true, `what` in words; the latest one where none is.
Json AwaitState(StubDaemon& daemon, const std::string& what,
                const std::function<bool(const Json& state)>& condition) {
  Json state;
  const bool is_seen = PollUntil(kPatience, [&] {
    state = GetJson(daemon, "/api/state");
    return condition(state);
  });
  EXPECT_TRUE(is_seen) << "waited for " << what << ", and the state is " << state.dump();
  return state;
}

/// The state once it shows `requests` requests whose prompts are done.
Json AwaitState(StubDaemon& daemon, size_t requests) {
  return AwaitState(daemon, absl::StrCat(requests, " that decode"), [requests](const Json& state) {
    const Json& shown = state["cache"]["requests"];
    return shown.size() == requests && std::all_of(shown.begin(), shown.end(), [](const Json& one) {
             return one["state"] == "decoding";
           });
  });
}

TEST(PageTest, StateIsWhatGetCacheAnswers) {
  StubDaemon daemon;
  // A ring stands still, so that two answers can be compared.
  const SlowRequest ring(daemon, "ring", "streaming(sinks=2,recent=30)");
  Json state = AwaitState(daemon, 1);
  EXPECT_EQ(state["state"], "serving");
  EXPECT_EQ(state["version"], VersionText());
  const Json model = {{"name", "stub"},
                      {"architecture", "StubForTests"},
                      {"num_layers", 4},
                      {"num_kv_heads", 2},
                      {"head_dim", 8},
                      {"max_context_tokens", 4096},
                      {"dtype", "bf16"},
                      {"backend", "none"},
                      {"default_compression", "full"},
                      {"max_running", 256},
                      {"max_queue", 1024}};
  EXPECT_EQ(state["model"], model);
  EXPECT_LT(state["started_at_ms"], state["cache_at_ms"]);
  EXPECT_LE(state["cache_at_ms"], state["time_ms"]);
  EXPECT_EQ(state["requests_left_out"], 0);
  Json expected = CacheJson(daemon.Cache());
  for (Json* cache : {&state["cache"], &expected}) {
    (*cache)["requests"][0].erase("generated_tokens");
    (*cache)["requests"][0].erase("layers");
    for (Json& layer : (*cache)["layers"]) {
      layer.erase("live_bytes");
      layer.erase("tail_waste_bytes");
    }
  }
  EXPECT_EQ(state["cache"], expected);
  EXPECT_EQ(state["cache"]["requests"][0]["layer_blocks"].size(), 4u);
}

TEST(PageTest, ARequestHasItsLayersInFull) {
  StubDaemon daemon;
  uint64_t id = 0;
  {
    const SlowRequest ring(daemon, "ring", "streaming(sinks=2,recent=30)");
    const Json state = AwaitState(daemon, 1);
    EXPECT_TRUE(state["cache"]["requests"][0]["layers"].empty());
    id = state["cache"]["requests"][0]["id"];
    const Json answer = GetJson(daemon, "/api/requests/" + std::to_string(id));
    const Json& request = answer["request"];
    EXPECT_EQ(request["request_id"], "ring");
    ASSERT_EQ(request["layers"].size(), 4u);
    for (const Json& layer : request["layers"]) {
      EXPECT_EQ(layer["tokens"], 32);
      EXPECT_EQ(layer["blocks"], 2);
      EXPECT_EQ(layer["formats"][0]["format"], "bf16");
    }
    EXPECT_EQ(answer["block_bytes"], state["cache"]["block_bytes"]);
  }
  for (const std::string& gone : {std::to_string(id), std::string("999"), std::string(40, '9')}) {
    EXPECT_TRUE(GetJson(daemon, "/api/requests/" + gone)["request"].is_null()) << gone;
  }
  for (const char* path : {"/api/requests/", "/api/requests/x", "/api/requests/1/2", "/api"}) {
    EXPECT_EQ(Get(daemon, path)->status, 404) << path;
  }
}

/// Every field, with a value of its own.
void Fill(google::protobuf::Message* message, uint32_t* next) {
  const auto* reflection = message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const auto* field = message->GetDescriptor()->field(i);
    const uint32_t number = ++*next;
    if (field->cpp_type() == field->CPPTYPE_MESSAGE) {
      Fill(reflection->AddMessage(message, field), next);
    } else if (field->is_repeated()) {
      reflection->AddUInt32(message, field, number);
    } else if (field->cpp_type() == field->CPPTYPE_STRING) {
      reflection->SetString(message, field, std::to_string(number));
    } else if (field->cpp_type() == field->CPPTYPE_UINT64) {
      reflection->SetUInt64(message, field, number);
    } else if (field->cpp_type() == field->CPPTYPE_UINT32) {
      reflection->SetUInt32(message, field, number);
    } else if (field->cpp_type() == field->CPPTYPE_BOOL) {
      reflection->SetBool(message, field, true);
    } else {
      reflection->SetDouble(message, field, number);
    }
  }
}

/// What protobuf makes of it, which writes numbers of 64 bits as strings.
Json WithNumbers(const Json& json) {
  if (json.is_string()) return Json::parse(json.get<std::string>());
  Json numbers = json;
  for (Json& part : numbers) {
    if (part.is_structured() || part.is_string()) part = WithNumbers(part);
  }
  return numbers;
}

TEST(PageTest, JsonHasEveryFieldUnderItsName) {
  v1::GetCacheResponse cache;
  uint32_t next = 0;
  Fill(&cache, &next);
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(cache, &text, options).ok());
  nlohmann::json expected = WithNumbers(Json::parse(text));
  nlohmann::json& layer = expected["layers"][0];
  layer["blocks_by_format"] = {
      {cache.layers(0).formats(0).format(), layer["formats"][0]["blocks"]}};
  layer.erase("formats");
  EXPECT_EQ(nlohmann::json(WithNumbers(CacheJson(cache))), expected);
}

TEST(PageTest, ManyRequestsAreCutOffAndCounted) {
  EngineSnapshot snapshot;
  snapshot.requests.resize(700);
  EXPECT_EQ(ToMessage(snapshot, CacheDetail::kRequestTotals, 512).requests_size(), 512);
  EXPECT_EQ(ToMessage(snapshot, CacheDetail::kRequestTotals).requests_size(), 700);
  EXPECT_EQ(ToMessage(snapshot, CacheDetail::kTotals).requests_size(), 0);

  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_running = 1;
  StubDaemon daemon(config);
  daemon.control().decode_delay_us = 20'000;
  const absl::StatusOr<std::shared_ptr<const Policy>> policy = ParsePolicy("full");
  ASSERT_TRUE(policy.ok()) << policy.status();
  constexpr size_t kLeftOut = 9;
  for (size_t i = 0; i < PageData::kMaxRequests + kLeftOut; ++i) {
    EngineRequest request;
    request.prompt = {1, 2, 3};
    request.policy = *policy;
    request.max_new_tokens = 3000;
    const absl::StatusOr<RequestId> id = daemon.engine().Submit(std::move(request));
    ASSERT_TRUE(id.ok()) << id.status();
  }
  const Json state = AwaitState(daemon, "requests that are left out", [](const Json& one) {
    return one["cache"]["running"] == 1 && one["requests_left_out"] == kLeftOut;
  });
  EXPECT_EQ(state["requests_left_out"], kLeftOut);
  EXPECT_EQ(state["cache"]["requests"].size(), PageData::kMaxRequests);
  EXPECT_EQ(state["cache"]["waiting"], PageData::kMaxRequests + kLeftOut - 1);
}

TEST(PageTest, NothingThatARequestNamesItselfIsMarkup) {
  StubDaemon daemon;
  const std::string name = "<script>alert('1')</script>\"&";
  const SlowRequest ring(daemon, name, "streaming(sinks=2,recent=30)");
  EXPECT_EQ(AwaitState(daemon, 1)["cache"]["requests"][0]["request_id"], name);
  for (const char* path : {"/", "/api/state", "/api/history", "/api/requests/1"}) {
    const httplib::Result answer = Get(daemon, path);
    for (const auto& [header, value] :
         {std::pair{"X-Content-Type-Options", "nosniff"}, std::pair{"Cache-Control", "no-store"},
          std::pair{"Cross-Origin-Resource-Policy", "same-origin"},
          std::pair{"Referrer-Policy", "no-referrer"}, std::pair{"X-Frame-Options", "DENY"}}) {
      EXPECT_EQ(answer->get_header_value(header), value) << path;
    }
    const std::string policy = answer->get_header_value("Content-Security-Policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'")) << path;
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'")) << path;
  }
}

TEST(PageTest, ThePageRunsItsOwnScriptAndNoOther) {
  StubDaemon daemon;
  const httplib::Result page = Get(daemon, "/");
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page->get_header_value("Cache-Control"), "no-store");
  EXPECT_EQ(page->get_header_value("X-Frame-Options"), "DENY");
  const std::string policy = page->get_header_value("Content-Security-Policy");
  for (const char* words : {"connect-src 'self';", "base-uri 'none';", "form-action 'none';"}) {
    EXPECT_THAT(policy, HasSubstr(words));
  }
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  std::smatch nonce;
  ASSERT_TRUE(std::regex_search(policy, nonce, std::regex("script-src 'nonce-([0-9a-f]{32})'")));
  EXPECT_THAT(page->body, HasSubstr("<script nonce=\"" + nonce[1].str() + "\">"));
  EXPECT_FALSE(std::regex_search(page->body, std::regex("@[A-Z]+@"))) << "a placeholder";
  // A nonce is for one answer.
  EXPECT_THAT(Get(daemon, "/")->body, Not(HasSubstr(nonce[1].str())));
  // No address but in the names of XML and SVG.
  const std::string rest = absl::StrReplaceAll(page->body, {{"http://www.w3.org/2000/svg", ""}});
  EXPECT_THAT(rest, Not(HasSubstr("http:")));
  EXPECT_THAT(rest, Not(HasSubstr("https:")));
}

TEST(PageTest, IsOffWhereTheConfigurationSaysSo) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.page = false;
  StubDaemon daemon(config);
  for (const char* path : {"/", "/api/state", "/api/history", "/api/requests/1"}) {
    EXPECT_EQ(Get(daemon, path)->status, 404) << path;
  }
  EXPECT_EQ(Get(daemon, "/metrics")->status, 200);
  EXPECT_EQ(Get(daemon, "/readyz")->status, 200);
}

TEST(PageTest, SaysWhatHasEndedAndWhatWasRefused) {
  StubDaemon daemon;
  ASSERT_TRUE(daemon.Generate(IdRequest({1, 2, 3}, 5)).status.ok());
  EXPECT_FALSE(daemon.Generate(IdRequest({1, 2, 3}, -1)).status.ok());
  const Json state = GetJson(daemon, "/api/state");
  EXPECT_EQ(state["finished"]["length"], 1);
  EXPECT_EQ(state["finished"]["error"], 0);
  EXPECT_EQ(state["refused"], 1);
  EXPECT_EQ(state["cache"]["used_blocks"], 0);
}

TEST(PageTest, TheHistoryGrowsWhileNothingElseChanges) {
  StubDaemon daemon;
  const Json state = AwaitState(daemon, "three points of time", [](const Json& one) {
    return one["latest"]["time_ms"].size() >= 3;
  });
  EXPECT_GE(state["latest"]["newest"], 3);
  EXPECT_GE(GetJson(daemon, "/api/history")["newest"], 3);
}

TEST(HistoryTest, QuantilesAreThoseOfTheBuckets) {
  const std::vector<double> bounds = {1, 2, 4};
  EXPECT_FALSE(QuantileOfCounts(bounds, std::vector<double>{0, 0, 0, 0}, 0.5).has_value());
  EXPECT_DOUBLE_EQ(*QuantileOfCounts(bounds, std::vector<double>{0, 10, 0, 0}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(*QuantileOfCounts(bounds, std::vector<double>{5, 0, 5, 0}, 0.95), 3.8);
  EXPECT_DOUBLE_EQ(*QuantileOfCounts(bounds, std::vector<double>{10, 0, 0, 0}, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(*QuantileOfCounts(bounds, std::vector<double>{0, 0, 0, 3}, 0.5), 4);
}

TEST(HistoryTest, RatesAreOfTheSecondsThatPassed) {
  History history;
  EXPECT_EQ(history.newest(), 0u);
  Metrics metrics;
  const absl::Time wall = absl::FromUnixSeconds(1000);
  const SteadyTime now;
  metrics.CountGeneratedTokens(500);  // before the first look: not a rate
  history.Add(metrics.Totals(), wall, now);
  metrics.CountGeneratedTokens(60);
  metrics.CountPromptTokens(20);
  metrics.CountFinished(FinishReason::kLength);
  metrics.CountRefused(Refusal::kQueueFull);
  metrics.ObserveFirstToken(0.3);
  metrics.ObserveInterToken({0.02, 0.02, 0.02, 0.3});
  const auto snapshot = std::make_shared<EngineSnapshot>();
  snapshot->used_blocks = 7;
  snapshot->reserved_blocks = 5;
  snapshot->running = 3;
  snapshot->waiting = 2;
  metrics.SetOccupancy(snapshot);
  // The clock on the wall is set back meanwhile.
  history.Add(metrics.Totals(), wall - absl::Hours(1) + absl::Seconds(2),
              now + std::chrono::seconds(2));
  const Json json = history.ToJson(History::kPoints);
  EXPECT_EQ(json["newest"], 2);
  EXPECT_EQ(json["time_ms"], Json({1000000, 1000000 - 3600'000 + 2000}));
  EXPECT_EQ(json["generated_tokens_per_second"], Json({0.0, 30.0}));
  EXPECT_EQ(json["finished_per_second"], Json({0.0, 0.5}));
  EXPECT_EQ(json["refused_per_second"], Json({0.0, 0.5}));
  EXPECT_TRUE(json["first_token_p50_seconds"][0].is_null());
  EXPECT_THAT(json["first_token_p50_seconds"][1].get<double>(), DoubleNear(0.375, 1e-6));
  EXPECT_THAT(json["first_token_p95_seconds"][1].get<double>(), DoubleNear(0.4875, 1e-6));
  EXPECT_LT(json["inter_token_p50_seconds"][1], 0.05);
  EXPECT_GT(json["inter_token_p95_seconds"][1], 0.25);
  EXPECT_EQ(json["prompt_tokens_per_second"], Json({0.0, 10.0}));
  EXPECT_EQ(json["running"], Json({0.0, 3.0}));
  EXPECT_EQ(json["waiting"], Json({0.0, 2.0}));
  EXPECT_EQ(json["used_blocks"], Json({0.0, 7.0}));
  EXPECT_EQ(json["reserved_blocks"], Json({0.0, 5.0}));
}

TEST(HistoryTest, LatenciesAreOfTheLastTenPointsAndPointsOfTheLastFiveMinutes) {
  History history;
  Metrics metrics;
  const auto add = [](History& to, const Metrics& of, int second) {
    to.Add(of.Totals(), absl::FromUnixSeconds(second), SteadyTime(std::chrono::seconds(second)));
  };
  add(history, metrics, 0);
  metrics.ObserveInterToken({0.02});
  for (int i = 1; i <= 400; ++i) add(history, metrics, i);
  const Json json = history.ToJson(History::kPoints + 50);
  EXPECT_EQ(json["newest"], 401);
  EXPECT_EQ(json["time_ms"].size(), History::kPoints);
  EXPECT_EQ(json["time_ms"].back(), 400000);
  EXPECT_TRUE(json["inter_token_p50_seconds"].back().is_null());
  EXPECT_EQ(history.ToJson(3)["time_ms"], Json({398000, 399000, 400000}));
  // Seen in the ten points behind the observation, and in no other.
  History fresh;
  Metrics others;
  add(fresh, others, 0);
  others.ObserveInterToken({0.02});
  for (int i = 1; i <= 15; ++i) add(fresh, others, i);
  int seen = 0;
  const Json shown = fresh.ToJson(100);
  for (const Json& value : shown["inter_token_p50_seconds"]) seen += value.is_null() ? 0 : 1;
  EXPECT_EQ(seen, 10);
}

}  // namespace
}  // namespace ziggurat

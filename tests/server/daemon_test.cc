// The daemon as a whole: its other calls, health, reflection and HTTP.
#include "server/daemon.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "server/version.h"
#include "tests/server/stub_daemon.h"
#include "tests/support/raw_calls.h"

namespace ziggurat {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::vector<int32_t> kPrompt = {10, 20, 30, 40, 50};

TEST(DaemonTest, TokenizesAndDetokenizes) {
  StubDaemon daemon;
  grpc::ClientContext contexts[3];
  v1::TokenizeRequest request;
  request.set_text(" a few words");
  v1::TokenizeResponse ids;
  ASSERT_TRUE(daemon.stub().Tokenize(&contexts[0], request, &ids).ok());
  EXPECT_THAT(ids.token_ids(), ElementsAreArray(*BundledTokenizer()->Encode(
                                   " a few words", {.add_special_tokens = false})));
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = ids.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(daemon.stub().Detokenize(&contexts[1], back, &text).ok());
  EXPECT_EQ(text.text(), " a few words");
  back.add_token_ids(99999);
  const grpc::Status status = daemon.stub().Detokenize(&contexts[2], back, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("99999"));
}

TEST(DaemonTest, SpecialTokensAreWhatTheCallSays) {
  StubDaemon daemon;
  const auto ids_of = [&](bool plain_text) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text("<|eos|>");
    request.set_plain_text(plain_text);
    v1::TokenizeResponse response;
    EXPECT_TRUE(daemon.stub().Tokenize(&context, request, &response).ok());
    return response.token_ids_size();
  };
  EXPECT_EQ(ids_of(false), 1);
  EXPECT_GT(ids_of(true), 1);
  const auto text_of = [&](bool with_special_tokens) {
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    request.add_token_ids(1);
    request.set_include_special_tokens(with_special_tokens);
    v1::DetokenizeResponse response;
    EXPECT_TRUE(daemon.stub().Detokenize(&context, request, &response).ok());
    return response.text();
  };
  EXPECT_EQ(text_of(false), "");
  EXPECT_EQ(text_of(true), "<|eos|>");
}

TEST(DaemonTest, SaysWhatItServes) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.compression = "snapkv(budget=256)";
  config.allow_compression = {"full", "snapkv"};
  StubDaemon daemon(config, StubDaemon::DefaultModel(), {1, 2});
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(daemon.stub().GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.name(), "stub");
  EXPECT_EQ(model.architecture(), "StubForTests");
  EXPECT_EQ(model.backend(), "none");
  EXPECT_EQ(model.version(), VersionText());
  EXPECT_EQ(model.num_layers(), 4u);
  EXPECT_EQ(model.num_q_heads(), 4u);
  EXPECT_EQ(model.num_kv_heads(), 2u);
  EXPECT_EQ(model.head_dim(), 8u);
  EXPECT_EQ(model.hidden_size(), 32u);
  EXPECT_THAT(model.eos_token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(model.vocab_size(), 1024u);
  EXPECT_EQ(model.max_context_tokens(), 4096u);
  EXPECT_EQ(model.max_prompt_tokens(), 4095u);
  EXPECT_EQ(model.default_max_tokens(), 512u);
  EXPECT_EQ(model.dtype(), "bf16");
  EXPECT_THAT(model.default_compression(), HasSubstr("snapkv(budget=256,"));
  ASSERT_EQ(model.policies_size(), 2);
  EXPECT_EQ(model.policies(1).name(), "snapkv");
  EXPECT_THAT(model.policies(1).help(), HasSubstr("budget"));
}

TEST(DaemonTest, ShowsTheCacheOfWhatRuns) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 30'000;
  grpc::ClientContext context;
  v1::GenerateRequest request = IdRequest(std::vector<int32_t>(300, 9), 100);
  request.set_request_id("shown");
  request.set_compression("pyramidkv(budget=64,window=8,beta=5)");
  const auto stream = daemon.stub().Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  absl::SleepFor(absl::Milliseconds(200));  // a snapshot may be 100 ms old
  const v1::GetCacheResponse cache = daemon.Cache();
  EXPECT_EQ(cache.total_blocks(), (size_t{4} << 20) / cache.block_bytes());
  EXPECT_EQ(cache.used_blocks() + cache.reserved_blocks() + cache.free_blocks(),
            cache.total_blocks());
  EXPECT_GE(cache.high_water_blocks(), cache.used_blocks());
  EXPECT_EQ(cache.running(), 1u);
  ASSERT_EQ(cache.requests_size(), 1);
  const v1::RequestOccupancy& shown = cache.requests(0);
  EXPECT_EQ(shown.request_id(), "shown");
  EXPECT_EQ(shown.state(), "decoding");
  EXPECT_THAT(shown.compression(), HasSubstr("pyramidkv(budget=64,"));
  EXPECT_EQ(shown.prompt_tokens(), 300u);
  EXPECT_GT(shown.generated_tokens(), 0u);
  ASSERT_EQ(shown.layer_blocks_size(), 4);
  ASSERT_EQ(cache.layers_size(), 4);
  uint64_t used = 0, reserved = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(cache.layers(i).used_blocks(), shown.layer_blocks(i));
    ASSERT_EQ(cache.layers(i).formats_size(), 1);
    EXPECT_EQ(cache.layers(i).formats(0).format(), "bf16");
    EXPECT_EQ(cache.layers(i).formats(0).blocks(), cache.layers(i).used_blocks());
    EXPECT_EQ(cache.layers(i).live_bytes() + cache.layers(i).tail_waste_bytes(),
              cache.layers(i).used_blocks() * cache.block_bytes());
    used += cache.layers(i).used_blocks();
    reserved += cache.layers(i).reserved_blocks();
  }
  EXPECT_EQ(cache.used_blocks(), used);
  EXPECT_EQ(shown.blocks(), used);
  EXPECT_GT(reserved, 0u);
  EXPECT_EQ(cache.reserved_blocks(), reserved);
  EXPECT_EQ(shown.reserved_blocks(), reserved);
  EXPECT_GT(shown.layer_blocks(0), shown.layer_blocks(3)) << "no pyramid";
  v1::GetCacheRequest totals;
  totals.set_totals_only(true);
  grpc::ClientContext totals_context;
  v1::GetCacheResponse pool;
  ASSERT_TRUE(daemon.stub().GetCache(&totals_context, totals, &pool).ok());
  EXPECT_EQ(pool.total_blocks(), cache.total_blocks());
  EXPECT_EQ(pool.running(), 1u);
  EXPECT_EQ(pool.layers_size() + pool.requests_size(), 0);
  context.TryCancel();
  daemon.WaitIdle();
}

TEST(DaemonTest, AnswersHealthChecksAndReflection) {
  StubDaemon daemon;
  EXPECT_EQ(CheckHealth(daemon.channel(), ""), "SERVING");
  EXPECT_EQ(CheckHealth(daemon.channel(), "ziggurat.v1.Ziggurat"), "SERVING");
  EXPECT_EQ(CheckHealth(daemon.channel(), "no.such.Service"), "NOT_FOUND");
  EXPECT_THAT(ListServices(daemon.channel()), HasSubstr("ziggurat.v1.Ziggurat"));
}

TEST(DaemonTest, ServesMetricsAndProbesOverHttp) {
  StubDaemon daemon;
  ASSERT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
  EXPECT_EQ(HttpGet(daemon, "/healthz").status, 200);
  EXPECT_EQ(HttpGet(daemon, "/readyz").status, 200);
  EXPECT_EQ(HttpGet(daemon, "/nothing").status, 404);
  EXPECT_EQ(httplib::Client("127.0.0.1", daemon.daemon().http_port())
                .Get("/metrics")
                ->get_header_value("Content-Type"),
            "text/plain; version=0.0.4; charset=utf-8");
  const HttpAnswer metrics = HttpGet(daemon, "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_THAT(metrics.body, HasSubstr("ziggurat_kv_blocks{layer=\"3\",state=\"used\"} 0"));
  EXPECT_THAT(metrics.body, HasSubstr("# TYPE ziggurat_kv_blocks gauge"));
}

TEST(DaemonTest, ServesTheSameValuesUnderVllmsNamesWhereAsked) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.metrics_compat = "vllm";
  StubDaemon daemon(config);
  ASSERT_TRUE(daemon.Generate(IdRequest(kPrompt, 5)).status.ok());
  daemon.WaitIdle();
  const std::string page = HttpGet(daemon, "/metrics").body;
  const std::string label = "{model_name=\"stub\"} ";
  for (const auto& [ours, theirs] : std::initializer_list<std::pair<std::string, std::string>>{
           {"ziggurat_prompt_tokens_total 5\n", "vllm:prompt_tokens_total" + label + "5\n"},
           {"ziggurat_generated_tokens_total 5\n", "vllm:generation_tokens_total" + label + "5\n"},
           {"ziggurat_inter_token_seconds_count 4\n",
            "vllm:inter_token_latency_seconds_count" + label + "4\n"},
           // The prompt's tokens, and the four that were fed back.
           {"ziggurat_step_tokens_sum 9\n", "vllm:iteration_tokens_total_sum" + label + "9\n"},
           {"ziggurat_prefill_seconds_count 1\n",
            "vllm:request_prefill_time_seconds_count" + label + "1\n"},
           {"ziggurat_decode_seconds_count 1\n",
            "vllm:request_decode_time_seconds_count" + label + "1\n"},
           {"ziggurat_request_generated_tokens_sum 5\n",
            "vllm:request_generation_tokens_sum" + label + "5\n"},
           {"ziggurat_requests_finished_total{reason=\"length\"} 1\n",
            "vllm:request_success_total{finished_reason=\"length\",model_name=\"stub\"} 1\n"},
       }) {
    EXPECT_THAT(page, HasSubstr(ours));
    EXPECT_THAT(page, HasSubstr(theirs));
  }
  const v1::GetCacheResponse cache = daemon.Cache();
  EXPECT_THAT(page, HasSubstr("block_size=\"16\",model_name=\"stub\",num_gpu_blocks=\"" +
                              std::to_string(cache.total_blocks() / cache.layers_size()) + "\""));
  // Four layers, one block of each for nine tokens.
  EXPECT_THAT(page, HasSubstr("ziggurat_admitted_blocks_sum 4\n"));
}

TEST(DaemonTest, CountsEveryRefusalOnceByItsReason) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.allow_compression = {"full"};
  StubDaemon daemon(config);
  v1::GenerateRequest negative = IdRequest(kPrompt, 5);
  negative.mutable_sampling()->set_temperature(-1);
  v1::GenerateRequest denied = IdRequest(kPrompt, 5);
  denied.set_compression("streaming");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(daemon.Generate(negative).status.ok());
  EXPECT_FALSE(daemon.Generate(denied).status.ok());
  const std::string metrics = HttpGet(daemon, "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("ziggurat_admissions_refused_total{reason=\"invalid\"} 3"));
  EXPECT_THAT(metrics, HasSubstr("ziggurat_admissions_refused_total{reason=\"not_allowed\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("ziggurat_admissions_refused_total{reason=\"queue_full\"} 0"));
}

TEST(DaemonTest, CountsWhatIsRefusedBeforeItIsParsedAsInvalid) {
  StubDaemon daemon;
  v1::GenerateRequest unnamed = IdRequest(kPrompt, 5);
  unnamed.set_request_id("two words");
  EXPECT_FALSE(daemon.Generate(unnamed).status.ok());
  EXPECT_FALSE(CallFromBytes(daemon.channel(), OurMethod("Generate"), "\x12\x7f").status.ok());
  const std::string long_text(size_t{4095} * 128 + 1, 'a');
  EXPECT_FALSE(daemon.Generate(TextRequest(long_text, 5)).status.ok());
  EXPECT_THAT(HttpGet(daemon, "/metrics").body,
              HasSubstr("ziggurat_admissions_refused_total{reason=\"invalid\"} 3"));
}

TEST(DaemonTest, TheEngineHasTheLimitsOfTheConfiguration) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.prefill_slice = absl::Milliseconds(7);
  config.check_integrity = true;
  StubDaemon host(config);
  EXPECT_EQ(host.engine().options().prefill_tokens, 1024);
  EXPECT_EQ(host.engine().options().prefill_slice, absl::Milliseconds(7));
  EXPECT_TRUE(host.engine().options().check_every_step);
  StubModelOptions on_device = StubDaemon::DefaultModel();
  on_device.is_asynchronous = true;
  StubDaemon device(StubDaemon::DefaultConfig(), on_device);
  EXPECT_EQ(device.engine().options().prefill_tokens, 8192);
}

TEST(DaemonTest, CountsACallPastItsDeadlineAsDeadline) {
  StubDaemon daemon;
  daemon.control().decode_delay_us = 5000;
  daemon.Cache();  // connects
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  const Generation late = daemon.Generate(IdRequest(kPrompt, 1000), &context);
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  daemon.WaitIdle();
  const std::string metrics = HttpGet(daemon, "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("ziggurat_requests_finished_total{reason=\"deadline\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("ziggurat_requests_finished_total{reason=\"cancelled\"} 0"));
}

TEST(DaemonTest, CountsACallThatLeavesBeforeItsRequestIsWholeAsCancelled) {
  StubDaemon daemon;
  const auto is_counted = [&] {
    const std::string metrics = HttpGet(daemon, "/metrics").body;
    return metrics.find("requests_finished_total{reason=\"cancelled\"} 0\n") == std::string::npos;
  };
  // A daemon may not have heard of a call that is gone at once.
  for (int tries = 0; tries < 50 && !is_counted(); ++tries) {
    LeaveBeforeTheRequest(daemon.channel(), OurMethod("Generate"));
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_TRUE(is_counted());
}

TEST(DaemonTest, CountsTheTimeInTheQueueOfWhoGaveUpThere) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.max_running = 1;
  StubDaemon daemon(config);
  daemon.control().decode_delay_us = 5000;
  LongCall running(daemon, IdRequest(kPrompt, 1000));
  ASSERT_TRUE(running.Read());
  grpc::ClientContext second;
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  const Generation late = daemon.Generate(IdRequest(kPrompt, 5), &second);
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  running.Cancel();
  daemon.WaitIdle();
  EXPECT_THAT(HttpGet(daemon, "/metrics").body, HasSubstr("ziggurat_queue_seconds_count 2"));
}

// A web site could give its own name this machine's address (DNS rebinding).
TEST(DaemonTest, AnswersOnLoopbackOnlyWhoCallsItByItsOwnName) {
  StubDaemon daemon;
  httplib::Client client("127.0.0.1", daemon.daemon().http_port());
  for (const char* host : {"127.0.0.1:9400", "localhost:1", "LocalHost", "[::1]:9400", "[::1]"}) {
    EXPECT_EQ(client.Get("/metrics", {{"Host", host}})->status, 200) << host;
  }
  for (const char* host : {"rebound.example:9400", "127.0.0.1.example", "localhost.example", "x"}) {
    const auto refused = client.Get("/metrics", {{"Host", host}});
    EXPECT_EQ(refused->status, 403) << host;
    EXPECT_THAT(refused->body, HasSubstr("localhost"));
    EXPECT_EQ(client.Get("/healthz", {{"Host", host}})->status, 200) << "probes are for everybody";
  }
}

TEST(DaemonTest, IsNotReadyBeforeItServes) {
  auto daemon = Daemon::Create(StubDaemon::DefaultConfig());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  httplib::Client client("127.0.0.1", (*daemon)->http_port());
  EXPECT_EQ(client.Get("/readyz")->status, 503);
  EXPECT_EQ(client.Get("/readyz")->body, "loading\n");
  EXPECT_EQ(client.Get("/healthz")->status, 200);
}

TEST(DaemonTest, RefusesCompressedMessages) {
  StubDaemon daemon;
  for (const auto& [algorithm, name] :
       {std::pair{GRPC_COMPRESS_GZIP, "gzip"}, std::pair{GRPC_COMPRESS_DEFLATE, "deflate"}}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::TokenizeRequest request;
    request.set_text(std::string(100000, 'a'));
    v1::TokenizeResponse response;
    const grpc::Status status = daemon.stub().Tokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  }
}

TEST(DaemonTest, CountsRequestsThatAStopStringEndsAsStopped) {
  StubDaemon daemon;
  // Whatever the first token says ends the text, which is also as long as it may be.
  v1::GenerateRequest request = IdRequest(kPrompt, 1);
  const Generation free = daemon.Generate(request);
  ASSERT_FALSE(free.text.empty());
  request.add_stop(free.text);
  const Generation stopped = daemon.Generate(request);
  ASSERT_TRUE(stopped.ok()) << stopped.Describe();
  EXPECT_EQ(stopped.result->finish_reason(), v1::FINISH_REASON_STOP);
  const std::string metrics = HttpGet(daemon, "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("ziggurat_requests_finished_total{reason=\"stop\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("ziggurat_requests_finished_total{reason=\"length\"} 1"));
}

TEST(DaemonTest, RefusesAPortThatIsTaken) {
  StubDaemon first;
  ServeConfig config = StubDaemon::DefaultConfig();
  config.http.port = first.daemon().http_port();
  const absl::Status taken = Daemon::Create(config).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.message()), AllOf(HasSubstr("cannot listen on http://127.0.0.1:"),
                                                  HasSubstr("Address already in use")));
  config.http.port = 0;
  config.grpc.port = first.daemon().grpc_port();
  auto second = Daemon::Create(config);
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status status = (*second)->Serve(
      std::make_unique<StubModel>(StubDaemon::DefaultModel()), {.name = "stub",
                                                                .architecture = "",
                                                                .backend = "",
                                                                .eos_token_ids = {},
                                                                .tokenizer = BundledTokenizer()});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Address already in use"));
}

/// Says that a device has so much memory left; the pool is the host's all the same.
class ModelOnDevice : public StubModel {
 public:
  explicit ModelOnDevice(size_t free_bytes)
      : StubModel(StubDaemon::DefaultModel()), free_bytes_(free_bytes) {}
  absl::StatusOr<size_t> FreePoolBytes() override { return free_bytes_; }

 private:
  const size_t free_bytes_;
};

TEST(DaemonTest, ThePoolMayBeAShareOfWhatIsFree) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.kv_cache_share = 0.25;
  const auto serve = [&](Daemon& daemon, size_t free_bytes) {
    return daemon.Serve(std::make_unique<ModelOnDevice>(free_bytes),
                        {.name = "stub",
                         .architecture = "",
                         .backend = "",
                         .eos_token_ids = {},
                         .tokenizer = BundledTokenizer()});
  };
  auto daemon = Daemon::Create(config);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  ASSERT_TRUE(serve(**daemon, size_t{8} << 20).ok());
  EXPECT_EQ((*daemon)->engine().total_blocks() * (*daemon)->engine().options().block_bytes,
            size_t{2} << 20);
  auto starved = Daemon::Create(config);
  ASSERT_TRUE(starved.ok()) << starved.status();
  const absl::Status status = serve(**starved, 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--kv-cache-memory is 25% of 4096 bytes that are free: 1024 bytes"));
}

TEST(DaemonTest, RefusesLimitsThatDoNotSuitTheModel) {
  ServeConfig config = StubDaemon::DefaultConfig();
  config.kv_cache_bytes = 100;
  auto daemon = Daemon::Create(config);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const absl::Status status = (*daemon)->Serve(
      std::make_unique<StubModel>(StubDaemon::DefaultModel()), {.name = "stub",
                                                                .architecture = "",
                                                                .backend = "",
                                                                .eos_token_ids = {},
                                                                .tokenizer = BundledTokenizer()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace ziggurat

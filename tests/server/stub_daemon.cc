#include "tests/server/stub_daemon.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "httplib.h"

namespace ziggurat {

std::shared_ptr<const Tokenizer> BundledTokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(ZIGGURAT_SOURCE_DIR "/models/needle-llama");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return std::shared_ptr<const Tokenizer>(*std::move(loaded));
  }();
  return tokenizer;
}

ServeConfig StubDaemon::DefaultConfig() {
  ServeConfig config;
  config.model = "stub";
  config.grpc = {"127.0.0.1", 0};
  config.http = {"127.0.0.1", 0};
  config.kv_cache_bytes = size_t{4} << 20;
  return config;
}

StubModelOptions StubDaemon::DefaultModel() {
  StubModelOptions model;
  model.shape.vocab_size = 1024;
  return model;
}

StubDaemon::StubDaemon(const ServeConfig& config, const StubModelOptions& model,
                       std::vector<int32_t> eos_token_ids,
                       std::shared_ptr<const Tokenizer> tokenizer)
    : model_(model) {
  if (!model_.control) model_.control = std::make_shared<StubControl>();
  control_ = model_.control;
  auto daemon = Daemon::Create(config);
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
  const absl::Status status = daemon_->Serve(std::make_unique<StubModel>(model_),
                                             {.name = "stub",
                                              .architecture = "StubForTests",
                                              .backend = "none",
                                              .eos_token_ids = std::move(eos_token_ids),
                                              .tokenizer = std::move(tokenizer)});
  EXPECT_TRUE(status.ok()) << status;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", daemon_->grpc_port()),
                                       grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::Ziggurat::NewStub(channel_);
}

Generation StubDaemon::Generate(const v1::GenerateRequest& request, grpc::ClientContext* context) {
  grpc::ClientContext own_context;
  Generation generation =
      CallGenerate(*stub_, request, context != nullptr ? *context : own_context);
  EXPECT_EQ(generation.messages_after_result, 0);
  return generation;
}

v1::GetCacheResponse StubDaemon::Cache() {
  grpc::ClientContext context;
  v1::GetCacheResponse cache;
  const grpc::Status status = stub_->GetCache(&context, {}, &cache);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return cache;
}

void StubDaemon::WaitIdle() { ASSERT_TRUE(engine().WaitIdle(absl::Minutes(2))); }

bool LongCall::Read() {
  v1::GenerateResponse response;
  return stream_->Read(&response);
}

grpc::Status LongCall::Cancel() {
  context_.TryCancel();
  while (Read()) {
  }
  return stream_->Finish();
}

HttpAnswer HttpGet(StubDaemon& daemon, const std::string& path) {
  httplib::Client client("127.0.0.1", daemon.daemon().http_port());
  const auto response = client.Get(path);
  if (!response) return {};
  return {response->status, response->body};
}

StubModelOptions ScriptedModel(std::vector<int32_t> answer, int prompt_tokens) {
  StubModelOptions model = StubDaemon::DefaultModel();
  model.next_token = [answer = std::move(answer), prompt_tokens](int32_t, int position) {
    return answer[(position - (prompt_tokens - 1)) % answer.size()];
  };
  return model;
}

}  // namespace ziggurat

// A whole daemon around the stub model, on ports of its own, and a client to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "server/config.h"
#include "server/daemon.h"
#include "tests/support/generation.h"
#include "tests/support/stub_model.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat {

/// ThreadSanitizer stops at every word of what gRPC passes on: seconds for a long text.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kGrpcIsSlow = true;
#else
inline constexpr bool kGrpcIsSlow = false;
#endif

/// The tokenizer of the bundled model; its vocabulary is the stub's too.
std::shared_ptr<const Tokenizer> BundledTokenizer();

class StubDaemon {
 public:
  static ServeConfig DefaultConfig();  ///< any free ports, a pool of 4 MiB
  static StubModelOptions DefaultModel();

  explicit StubDaemon(const ServeConfig& config = DefaultConfig(),
                      const StubModelOptions& model = DefaultModel(),
                      std::vector<int32_t> eos_token_ids = {},
                      std::shared_ptr<const Tokenizer> tokenizer = BundledTokenizer());

  Daemon& daemon() { return *daemon_; }
  Engine& engine() { return daemon_->engine(); }
  StubControl& control() { return *control_; }
  const StubModelOptions& model() const { return model_; }
  v1::Ziggurat::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  /// Calls Generate and reads all of it; fails the test where anything comes after the result.
  Generation Generate(const v1::GenerateRequest& request, grpc::ClientContext* context = nullptr);
  v1::GetCacheResponse Cache();
  /// Waits until no request is left in the engine; fails the test after two minutes.
  void WaitIdle();

 private:
  StubModelOptions model_;
  std::shared_ptr<StubControl> control_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ziggurat::Stub> stub_;
};

/// A call whose answer is so long that it is read bit by bit, or cancelled.
class LongCall {
 public:
  LongCall(StubDaemon& daemon, const v1::GenerateRequest& request)
      : stream_(daemon.stub().Generate(&context_, request)) {}

  bool Read();            ///< the next message; false: there is none
  grpc::Status Cancel();  ///< and reads what has come before that

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> stream_;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};
HttpAnswer HttpGet(StubDaemon& daemon, const std::string& path);

/// The stub then answers to a prompt of `prompt_tokens` tokens with these tokens, in turn.
StubModelOptions ScriptedModel(std::vector<int32_t> answer, int prompt_tokens);

}  // namespace ziggurat

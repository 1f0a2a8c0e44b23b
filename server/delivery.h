// From the engine's tokens to the clients' messages: one thread that takes what every step put out,
// turns token ids into text, ends requests at their stop strings, and hands each message on.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer.h"
#include "scheduler/engine.h"
#include "server/text_stream.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

/// Where the messages of one request go. Called by the delivery thread, or by the one that refuses
/// the request; calls must not block.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  /// Chunks, then at most one result.
  virtual void Send(v1::GenerateResponse response) = 0;
  /// The last call, exactly once. OK after a result.
  virtual void Finish(absl::Status status) = 0;
};

/// A request as the service has parsed it.
struct DeliveryRequest {
  EngineRequest engine;
  TextStreamOptions text;
  bool with_logprobs = false;
  bool echo_prompt = false;
};

/// Runs from construction until the engine has been stopped. Destroy it after Engine::Stop and
/// before the engine.
class Delivery {
 public:
  /// All of them outlive the delivery.
  Delivery(Engine* engine, const Tokenizer* tokenizer, Metrics* metrics);
  ~Delivery();

  /// Any thread. Submits to the engine; from then on, and possibly before this returns, `sink` is
  /// called. Errors are those of Engine::Submit, and then `sink` is never called.
  absl::StatusOr<RequestId> Submit(DeliveryRequest request, std::shared_ptr<ResponseSink> sink);

 private:
  struct Stream {
    Stream(const Tokenizer* tokenizer, const TextStreamOptions& options)
        : text(tokenizer, options) {}

    std::shared_ptr<ResponseSink> sink;
    std::string name;
    TextStream text;
    bool with_logprobs = false;
    bool may_end_by_text = false;
    std::vector<int32_t> echo;  // prompt ids that the first chunk still has to carry
    int completion_tokens = 0;
  };

  void Run();
  void Deliver(const EngineOutput& output);
  void SendNew(const EngineOutput& output, Stream& stream);
  void SendResult(const EngineResult& ended, Stream& stream);
  v1::GenerateResult MakeResult(const EngineResult& ended, const Stream& stream) const;

  Engine* const engine_;
  const Tokenizer* const tokenizer_;
  Metrics* const metrics_;
  std::mutex mutex_;
  // Streams are used by the delivery thread alone; the mutex guards the table.
  std::unordered_map<RequestId, std::unique_ptr<Stream>> streams_;
  std::thread thread_;
};

}  // namespace ziggurat

// One Generate call on the wire: a gRPC reactor that is fed by the delivery thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "scheduler/engine.h"
#include "server/delivery.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

/// The Generate calls that there are. Any thread.
class OpenCalls {
 public:
  void Begin() { ++count_; }
  void Accept() { ++accepted_; }
  void End(bool was_accepted) {
    last_end_ = std::chrono::steady_clock::now();
    --count_;
    if (was_accepted) --accepted_;
  }
  int count() const { return count_; }
  /// Those that were not refused at once.
  int accepted() const { return accepted_; }
  /// Whether there is none, and the last one ended at least so long ago.
  bool HaveBeenNoneFor(std::chrono::milliseconds time) const {
    return count_ == 0 && std::chrono::steady_clock::now() - last_end_.load() >= time;
  }

 private:
  std::atomic<int> count_ = 0;
  std::atomic<int> accepted_ = 0;
  std::atomic<SteadyTime> last_end_ = SteadyTime();
};

/// Writes what the delivery sends, one message at a time; what comes while a write is under way is
/// merged into the message that waits, so a slow client costs memory of its own request only.
///
/// Lifetime: held by itself until gRPC says OnDone, and by the delivery until Finish has returned.
class GenerateCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public ResponseSink {
 public:
  /// `open_calls` counts it for as long as it exists; it and the engine outlive every call, the
  /// call's context lives until OnDone.
  static std::shared_ptr<GenerateCall> Make(Engine* engine, OpenCalls* open_calls,
                                            grpc::CallbackServerContext* context);
  ~GenerateCall() override { open_calls_->End(is_accepted_); }

  /// It is not refused at once, but may have to wait. At most once, by who made it.
  void Accept();
  /// Gives it a request to cancel when the client goes away, or at once where it has gone. Any
  /// thread.
  void SetRequest(RequestId id);
  /// Whether the client has gone away.
  bool is_broken();

  // ---- ResponseSink ---------------------------------------------------------------------------
  void Send(v1::GenerateResponse response) override;
  void Finish(absl::Status status) override;

  // ---- Reactions: gRPC's threads -------------------------------------------------------------
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateCall(Engine* engine, OpenCalls* open_calls, grpc::CallbackServerContext* context);
  void Break();  ///< nothing is written any more, and nothing computed for it
  void Cancel();
  void WriteNext();  // mutex held

  Engine* const engine_;
  OpenCalls* const open_calls_;
  grpc::CallbackServerContext* const context_;
  std::atomic<RequestId> id_ = 0;  // 0: none
  bool is_accepted_ = false;
  std::shared_ptr<GenerateCall> self_;

  std::mutex mutex_;
  std::deque<v1::GenerateResponse> pending_;
  grpc::ByteBuffer writing_;  // what gRPC writes now, if is_writing_
  std::optional<absl::Status> final_status_;
  bool is_writing_ = false;
  bool is_broken_ = false;  // the client is gone: nothing is written any more
};

}  // namespace ziggurat

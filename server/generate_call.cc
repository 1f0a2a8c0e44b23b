#include "server/generate_call.h"

#include <string>
#include <utility>

#include "scheduler/refusal.h"
#include "server/wire.h"

namespace ziggurat {
namespace {

// A merged chunk stays below this, so that no message grows past a client's size limit.
constexpr int kMaxMergedTokens = 256;

bool TryMerge(const v1::GenerateResponse& from, v1::GenerateResponse* into) {
  if (!from.has_chunk() || !into->has_chunk()) return false;
  if (from.chunk().token_ids_size() + into->chunk().token_ids_size() > kMaxMergedTokens) {
    return false;
  }
  into->mutable_chunk()->mutable_text()->append(from.chunk().text());
  into->mutable_chunk()->mutable_token_ids()->MergeFrom(from.chunk().token_ids());
  into->mutable_chunk()->mutable_logprobs()->MergeFrom(from.chunk().logprobs());
  into->mutable_chunk()->mutable_prompt_token_ids()->MergeFrom(from.chunk().prompt_token_ids());
  return true;
}

}  // namespace

std::shared_ptr<GenerateCall> GenerateCall::Make(Engine* engine, OpenCalls* open_calls,
                                                 grpc::CallbackServerContext* context) {
  std::shared_ptr<GenerateCall> call(new GenerateCall(engine, open_calls, context));
  call->self_ = call;
  return call;
}

GenerateCall::GenerateCall(Engine* engine, OpenCalls* open_calls,
                           grpc::CallbackServerContext* context)
    : engine_(engine), open_calls_(open_calls), context_(context) {
  open_calls_->Begin();
}

void GenerateCall::Accept() {
  is_accepted_ = true;
  open_calls_->Accept();
}

void GenerateCall::SetRequest(RequestId id) {
  id_ = id;
  if (is_broken()) Cancel();
}

bool GenerateCall::is_broken() {
  std::lock_guard lock(mutex_);
  return is_broken_;
}

void GenerateCall::Send(v1::GenerateResponse response) {
  std::lock_guard lock(mutex_);
  if (is_broken_) return;
  if (pending_.empty() || !TryMerge(response, &pending_.back())) {
    pending_.push_back(std::move(response));
  }
  if (!is_writing_) WriteNext();
}

void GenerateCall::Finish(absl::Status status) {
  std::lock_guard lock(mutex_);
  final_status_ = std::move(status);
  if (!is_writing_) WriteNext();
}

void GenerateCall::WriteNext() {
  if (!pending_.empty()) {
    is_writing_ = true;
    writing_ = ToBytes(pending_.front());
    pending_.pop_front();
    StartWrite(&writing_);
  } else if (final_status_) {
    if (const std::string reason = RefusalReason(*final_status_); !reason.empty()) {
      context_->AddTrailingMetadata(kRefusalReasonKey, reason);
    }
    ServerWriteReactor::Finish(ToGrpcStatus(*final_status_));
  }
}

void GenerateCall::OnWriteDone(bool ok) {
  if (!ok) Break();
  std::lock_guard lock(mutex_);
  is_writing_ = false;
  WriteNext();
}

// The client has cancelled, its deadline has passed, or it has gone away. The stream is finished as
// ever, by the engine's last output.
void GenerateCall::OnCancel() { Break(); }

void GenerateCall::OnDone() { self_.reset(); }

void GenerateCall::Break() {
  {
    std::lock_guard lock(mutex_);
    is_broken_ = true;
    pending_.clear();
  }
  Cancel();
}

void GenerateCall::Cancel() {
  if (const RequestId id = id_; id != 0) engine_->Cancel(id, FinishReason::kCancelled);
}

}  // namespace ziggurat

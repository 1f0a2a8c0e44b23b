#include "server/cli/policy_check.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "compression/policy.h"
#include "compression/registry.h"
#include "server/cli/call_status.h"
#include "server/cli/patience.h"

namespace ziggurat {
namespace {

grpc::Status AskOnce(v1::Ziggurat::StubInterface& stub, const std::string& text,
                     const std::vector<std::string>& stop, std::string& canonical) {
  grpc::ClientContext context;
  SetDeadline(context, kBusyPatience);
  v1::GenerateRequest request;
  for (const int32_t id : {0, 0}) request.mutable_token_ids()->add_ids(id);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(1);
  request.mutable_stop()->Add(stop.begin(), stop.end());
  request.set_compression(text);
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_result()) canonical = response.result().cache().compression();
  }
  if (std::string any = TextOfAnyPrompt(text); !any.empty()) canonical = std::move(any);
  return WithoutAnswer(WithRefusalReason(stream->Finish(), context), kBusyPatience);
}

}  // namespace

std::string TextOfAnyPrompt(const std::string& text) {
  const absl::StatusOr<std::shared_ptr<const Policy>> policy = ParsePolicy(text);
  return policy.ok() && (*policy)->wants_prompt_text() ? (*policy)->ToString() : "";
}

grpc::Status CheckPolicy(v1::Ziggurat::StubInterface& stub, const std::string& text,
                         const std::vector<std::string>& stop, std::string& canonical) {
  Patience patience(kBusyPatience);
  for (;;) {
    grpc::Status status = AskOnce(stub, text, stop, canonical);
    const std::optional<absl::Duration> pause =
        IsBusy(status) ? patience.NextPause() : std::nullopt;
    if (!pause) return status;
    absl::SleepFor(*pause);
  }
}

}  // namespace ziggurat

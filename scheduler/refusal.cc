#include "scheduler/refusal.h"

#include <utility>

#include "absl/strings/cord.h"

namespace ziggurat {
namespace {

constexpr char kPayload[] = "ziggurat/refusal_reason";

}  // namespace

absl::Status RefusedFor(std::string_view reason, absl::Status status) {
  status.SetPayload(kPayload, absl::Cord(absl::string_view(reason.data(), reason.size())));
  return status;
}

std::string RefusalReason(const absl::Status& status) {
  const auto reason = status.GetPayload(kPayload);
  return reason.has_value() ? std::string(*reason) : "";
}

}  // namespace ziggurat

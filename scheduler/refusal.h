// Why a request was refused, at once or after a time in the queue, in a word: the label `reason` of
// ziggurat_admissions_refused_total, and what clients tell "later" from "never" by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ziggurat {

class Metrics;

enum class Refusal : uint8_t {
  kInvalid,
  kNotAllowed,
  kNeverFits,
  kQueueFull,
  kQueueTime,
  kTooManyStreams,
  kDraining,
  kUnauthenticated,
};
inline constexpr Refusal kRefusals[] = {
    Refusal::kInvalid,   Refusal::kNotAllowed,     Refusal::kNeverFits, Refusal::kQueueFull,
    Refusal::kQueueTime, Refusal::kTooManyStreams, Refusal::kDraining,  Refusal::kUnauthenticated};
/// The word: "queue_full".
constexpr std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kInvalid:
      return "invalid";
    case Refusal::kNotAllowed:
      return "not_allowed";
    case Refusal::kNeverFits:
      return "never_fits";
    case Refusal::kQueueFull:
      return "queue_full";
    case Refusal::kQueueTime:
      return "queue_time";
    case Refusal::kTooManyStreams:
      return "too_many_streams";
    case Refusal::kDraining:
      return "draining";
    case Refusal::kUnauthenticated:
      return "unauthenticated";
  }
  return "";
}

/// Counts the refusal; the status, with its reason.
absl::Status Refuse(Metrics* metrics, Refusal reason, absl::Status status);
/// The same of a request that is wrong, kInvalid. INTERNAL is not the request's fault: it counts as
/// one that ended with an error, and has no reason.
absl::Status RefuseInvalid(Metrics* metrics, absl::Status status);
/// The word for the reason that Refuse gave it; "" without one.
std::string RefusalReason(const absl::Status& status);

}  // namespace ziggurat

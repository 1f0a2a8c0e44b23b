// Why a request was refused, at once or after a time in the queue, in a word: the label `reason` of
// ziggurat_admissions_refused_total, and what clients tell "later" from "never" by.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ziggurat {

class Metrics;

/// Counts the refusal, where there are metrics; the status with its reason, such as "queue_full".
absl::Status Refuse(Metrics* metrics, std::string_view reason, absl::Status status);
/// The same of a request that is wrong, "invalid". INTERNAL is not the request's fault: it counts
/// as one that ended with an error, and has no reason.
absl::Status RefuseInvalid(Metrics* metrics, absl::Status status);
/// The reason that Refuse gave it; "" without one.
std::string RefusalReason(const absl::Status& status);

}  // namespace ziggurat

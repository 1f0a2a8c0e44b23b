#include "scheduler/request.h"

namespace ziggurat {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kUnavailable:
      return "unavailable";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kQueueTime:
      return "queue_time";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

}  // namespace ziggurat

#include "model/decoder/caught_error.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"

namespace ziggurat {

absl::Status CaughtError(const std::exception& error, std::string_view what) {
  // c10::Error has nothing but its text to tell them apart.
  const std::string_view text = error.what();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      text.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos) {
    return absl::ResourceExhaustedError(absl::StrCat(AbslView(what), ": out of memory"));
  }
  return absl::InternalError(absl::StrCat(AbslView(what), ": ", error.what()));
}

}  // namespace ziggurat

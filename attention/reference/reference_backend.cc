#include "attention/reference/reference_backend.h"

#include <memory>

namespace ziggurat {

std::unique_ptr<AttentionBackend> MakeReferenceBackend() {
  return std::make_unique<reference::ReferenceBackend>();
}

}  // namespace ziggurat

// For tests that promise what resident memory stays below.
#pragma once

#include "model/resident_memory.h"

namespace ziggurat {

/// Sanitizers keep shadow memory of their own, so figures say nothing there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kResidentMemoryIsOurs = false;
#else
constexpr bool kResidentMemoryIsOurs = true;
#endif

}  // namespace ziggurat

// The ziggurat: a picture of the KV cache in text.
#pragma once

#include <string>

#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

/// The pool as one bar (used, reserved, free), then every layer as a bar around a middle axis, the
/// last layer on top, so that a pyramid of budgets looks like one; then which formats the layers
/// hold, where these are not one plain format alone, and the requests. UTF-8, every line at most
/// `columns` wide (at least 60).
std::string DrawCache(const v1::GetCacheResponse& cache, int columns);

/// What one request held: every layer as a bar, its whole width being what `full` would have held;
/// then in words (server/cli/layer_text.h).
std::string DrawReport(const v1::CacheReport& report, int columns);

}  // namespace ziggurat

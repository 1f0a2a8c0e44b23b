// What the engine reports, as messages of ziggurat.v1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "model/sampling/sampling.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

v1::CacheReport ToMessage(const CacheReport& report);

enum class CacheDetail : uint8_t {
  kTotals,          ///< the pool and the counts alone
  kRequestTotals,   ///< layers and requests too, but not the layers of each request in full
  kRequestsInFull,  ///< everything
};
/// At most `max_requests` of the snapshot's requests, the first ones.
v1::GetCacheResponse ToMessage(const EngineSnapshot& snapshot, CacheDetail detail,
                               size_t max_requests = std::numeric_limits<size_t>::max());
v1::RequestOccupancy ToMessage(const RequestSnapshot& request, CacheDetail detail);
v1::TokenLogprobs ToMessage(const SampledToken& token);

}  // namespace ziggurat

// What the engine reports, as messages of ziggurat.v1.
#pragma once

#include "model/sampling/sampling.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "ziggurat/v1/ziggurat.pb.h"

namespace ziggurat {

v1::CacheReport ToMessage(const CacheReport& report);
v1::GetCacheResponse ToMessage(const EngineSnapshot& snapshot);
v1::TokenLogprobs ToMessage(const SampledToken& token);

}  // namespace ziggurat

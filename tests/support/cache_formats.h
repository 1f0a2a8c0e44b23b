// Formats with what a policy adds to them.
#pragma once

#include "block_manager/cache_format.h"

namespace ziggurat {

inline CacheFormat Merged(CacheFormat format) {
  format.merged = true;
  return format;
}
inline CacheFormat Scored(CacheFormat format) {
  format.scored = true;
  return format;
}
inline CacheFormat ValuesOnly(CacheFormat format) {
  format.values_only = true;
  return format;
}

}  // namespace ziggurat

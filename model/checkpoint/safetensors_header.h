// The JSON header of a safetensors file, parsed and checked. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"

namespace ziggurat {

/// What the header says of one tensor. `begin` and `end` count bytes from the end of the header.
struct HeaderEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Entries whose spans agree with their shapes and together cover exactly [0, data_bytes), as the
/// format demands. INVALID_ARGUMENT says what is wrong, without the file's name.
absl::StatusOr<std::map<std::string, HeaderEntry, std::less<>>> ParseSafetensorsHeader(
    std::string_view json, uint64_t data_bytes);

}  // namespace ziggurat

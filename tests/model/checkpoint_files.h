// Files of checkpoints for tests: safetensors files, right and wrong.
#pragma once

#include <string>

#include "tests/support/files.h"

namespace ziggurat {

/// The bytes of a safetensors file: length, header, data.
inline std::string Safetensors(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xff));
  }
  return bytes + header + data;
}

}  // namespace ziggurat

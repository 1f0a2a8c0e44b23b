#include "tests/e2e/environment.h"

#include <cstdlib>
#include <string_view>

namespace ziggurat::e2e {

std::filesystem::path Binary() {
  const char* override_path = std::getenv("ZIGGURAT_BINARY");
  if (override_path != nullptr && *override_path != '\0') return override_path;
  return std::filesystem::path(ZIGGURAT_BINARY_DIR) / "ziggurat";
}

std::string Device() {
  const char* device = std::getenv("ZIGGURAT_DEVICE");
  return device == nullptr ? "" : device;
}

bool ComputesOnGpu() { return Device().rfind("cuda", 0) == 0; }

bool IsSoak() {
  const char* soak = std::getenv("ZIGGURAT_SOAK");
  return soak != nullptr && *soak != '\0' && std::string_view(soak) != "0";
}

std::filesystem::path NeedleLlama() {
  return std::filesystem::path(ZIGGURAT_SOURCE_DIR) / "models" / "needle-llama";
}

}  // namespace ziggurat::e2e

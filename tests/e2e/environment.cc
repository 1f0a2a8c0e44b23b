#include "tests/e2e/environment.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

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

std::filesystem::path SharedFolder() {
  return std::filesystem::path(ZIGGURAT_SOURCE_DIR).parent_path() / "shared";
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::abort();
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteFile(const std::filesystem::path& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file.flush()) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::abort();
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "ziggurat-e2e-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    std::perror("mkdtemp");
    std::abort();
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ziggurat::e2e

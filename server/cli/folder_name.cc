#include "server/cli/folder_name.h"

#include "server/printable.h"

namespace ziggurat {

std::string FolderName(const std::filesystem::path& path) {
  const std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  return Printable(
      (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string());
}

}  // namespace ziggurat

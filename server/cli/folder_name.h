// What a model is called: by its folder.
#pragma once

#include <filesystem>
#include <string>

namespace ziggurat {

/// The last name of a path, as it is from the root: "needle-llama" of "." inside it and of
/// "models/needle-llama/".
std::string FolderName(const std::filesystem::path& path);

}  // namespace ziggurat

// A compression policy out of all there are, with parameters at which it acts on short prompts.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

namespace ziggurat::e2e {

/// Flags for a daemon whose requests may name the groups that RandomPolicy does; writes their files
/// into `dir`.
std::vector<std::string> PodGroupFlags(const std::filesystem::path& dir);

/// For the bundled model (8 layers, 2 KV heads of size 32).
std::string RandomPolicy(std::mt19937& random);

}  // namespace ziggurat::e2e

// Files of PoD groups for the bundled model.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/environment.h"

namespace ziggurat::e2e {

/// The text of a groups file in which `lowest(layer, kv_head)` is the lowest layer of each group.
std::string PodGroupsJson(int layers, int kv_heads, const std::function<int(int, int)>& lowest);

/// Three calibrations of needle-llama's 8 layers and 2 KV heads in a folder of their own: `single`
/// (every layer a group), `fours` (layers 0 to 3 and 4 to 7) and `heads` (fours in head 0, pairs in
/// head 1).
class PodGroupsFiles {
 public:
  PodGroupsFiles();

  /// --pod-groups single=... --pod-groups fours=... --pod-groups heads=...
  std::vector<std::string> Flags() const;
  std::filesystem::path path(const std::string& name) const;

 private:
  TemporaryFolder folder_;
};

}  // namespace ziggurat::e2e

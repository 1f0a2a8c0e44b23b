#include "tests/e2e/pod_groups_file.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ziggurat::e2e {

std::string PodGroupsJson(int layers, int kv_heads, const std::function<int(int, int)>& lowest) {
  nlohmann::json rows = nlohmann::json::array();
  for (int layer = 0; layer < layers; ++layer) {
    nlohmann::json row = nlohmann::json::array();
    for (int head = 0; head < kv_heads; ++head) row.push_back(lowest(layer, head));
    rows.push_back(row);
  }
  return nlohmann::json{{"format", "ziggurat-pod-groups"},
                        {"version", 1},
                        {"num_layers", layers},
                        {"num_kv_heads", kv_heads},
                        {"lowest", rows}}
      .dump();
}

PodGroupsFiles::PodGroupsFiles() {
  WriteFile(path("single"), PodGroupsJson(8, 2, [](int layer, int) { return layer; }));
  WriteFile(path("fours"), PodGroupsJson(8, 2, [](int layer, int) { return layer / 4 * 4; }));
  WriteFile(path("heads"), PodGroupsJson(8, 2, [](int layer, int head) {
              return head == 0 ? layer / 4 * 4 : layer / 2 * 2;
            }));
}

std::vector<std::string> PodGroupsFiles::Flags() const {
  std::vector<std::string> flags;
  for (const char* name : {"single", "fours", "heads"}) {
    flags.push_back("--pod-groups");
    flags.push_back(absl::StrCat(name, "=", path(name).string()));
  }
  return flags;
}

std::filesystem::path PodGroupsFiles::path(const std::string& name) const {
  return folder_ / absl::StrCat(name, ".json");
}

}  // namespace ziggurat::e2e

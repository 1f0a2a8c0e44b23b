#include "tests/e2e/random_policy.h"

#include "absl/strings/str_cat.h"
#include "tests/e2e/pod_groups_file.h"

namespace ziggurat::e2e {
namespace {

/// `lowest` of each of 8 layers and 2 KV heads.
void WriteGroups(const std::filesystem::path& path, const int (&lowest)[8][2]) {
  WriteFile(path, PodGroupsJson(8, 2, [&](int layer, int head) { return lowest[layer][head]; }));
}

class PolicyWriter {
 public:
  explicit PolicyWriter(std::mt19937& random) : random_(random) {}

  std::string Write() {
    switch (Between(0, 12)) {
      case 0:
        return Pick({"full", "kivi", "kivi(bits=2,group=16,residual=5)", "int8", "fp8"});
      case 1:
        return absl::StrCat("streaming(sinks=", Between(0, 8), ",recent=", Between(1, 200), ")",
                            MaybeStorage());
      case 2:
        return absl::StrCat(Selection(), MaybeStorage());
      case 3:
        return absl::StrCat("pyramidkv(budget=", 8 + Between(1, 300), ",window=8,shape=",
                            Pick({"geometric", "exponential", "entropy", "gini"}), ")",
                            MaybeStorage());
      case 4:
        return absl::StrCat("h2o(heavy=", Between(1, 100), ",recent=", Between(1, 100), ")",
                            Pick({"", "+int8", "+fp8"}));
      case 5:
        return absl::StrCat(Lazy("prefill"), MaybeStorage());
      case 6:
        return absl::StrCat(Lazy("decode"), MaybeStorage());
      case 7:
        return absl::StrCat(Lazy("prefill"), "+", Selection(), MaybeStorage());
      case 8:
        return absl::StrCat("minicache(start=", Between(0, 6), ",tail=", Between(1, 40),
                            ",retain=0.", Between(0, 5), ")", MaybeStorage());
      case 9:
        return absl::StrCat("windowkv(budget=", 32 + Between(8, 200), ",group=", Between(1, 8),
                            ",task=", Pick({"auto", "localization", "aggregation"}), ")",
                            MaybeStorage());
      case 10:
        return absl::StrCat(Pod(), MaybeStorage());
      case 11:
        return absl::StrCat(Pod(), "+snapkv(budget=", 8 + Between(1, 200), ",window=8)",
                            MaybeStorage());
      default:
        return absl::StrCat(Squeeze(), MaybeStorage());
    }
  }

 private:
  int Between(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  std::string Pick(std::vector<std::string> texts) {
    return texts[static_cast<size_t>(Between(0, static_cast<int>(texts.size()) - 1))];
  }
  std::string MaybeStorage() {
    return Pick({"", "",
                 absl::StrCat("+kivi(bits=", Pick({"2", "4"}), ",group=", Pick({"8", "16", "32"}),
                              ",residual=", Between(0, 40), ")"),
                 "+int8", "+fp8"});
  }
  std::string Selection() {
    const int window = Between(1, 40);
    return absl::StrCat(Pick({"snapkv", "pyramidkv"}), "(budget=", window + Between(1, 300),
                        ",window=", window, ",kernel=", 1 + 2 * Between(0, 5),
                        ",pool=", Pick({"avg", "max"}), ")");
  }
  std::string Lazy(const std::string& decide) {
    return absl::StrCat("simlayerkv(threshold=0.", Between(2, 8), ",sinks=", Between(0, 8),
                        ",recent=", Between(1, 150), ",decide=", decide, ")");
  }
  std::string Squeeze() {
    // A share of the budget must be 5 tokens at least.
    const int tenths = Between(1, 9), least = 50 / tenths + 1;
    return absl::StrCat("squeeze(budget=", Between(least, 300), ",p=0.", tenths, ")");
  }
  std::string Pod() {
    return absl::StrCat("pod(groups=", Pick({"alike", "mixed"}), ",sinks=", Between(0, 6),
                        ",recent=", Between(1, 120), ",skip=", Pick({"off", "0.5", "0.9"}), ")");
  }

  std::mt19937& random_;
};

}  // namespace

std::vector<std::string> PodGroupFlags(const std::filesystem::path& dir) {
  WriteGroups(dir / "alike.json", {{0, 0}, {0, 0}, {2, 2}, {2, 2}, {2, 2}, {5, 5}, {6, 6}, {6, 6}});
  WriteGroups(dir / "mixed.json", {{0, 0}, {0, 1}, {2, 1}, {2, 3}, {4, 3}, {4, 5}, {4, 5}, {7, 5}});
  return {"--pod-groups", absl::StrCat("alike=", (dir / "alike.json").string()), "--pod-groups",
          absl::StrCat("mixed=", (dir / "mixed.json").string())};
}

std::string RandomPolicy(std::mt19937& random) { return PolicyWriter(random).Write(); }

}  // namespace ziggurat::e2e

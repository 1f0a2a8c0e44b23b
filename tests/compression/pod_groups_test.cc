// Groups files: what is read, what is refused and how that is said.
#include "compression/pod_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string File(std::string_view lowest, std::string_view rest = "") {
  return R"({"format":"ziggurat-pod-groups","version":1,"num_layers":3,"num_kv_heads":2,"lowest":)" +
         std::string(lowest) + std::string(rest) + "}";
}

std::string Refusal(std::string_view text, std::string_view name = "calibration") {
  const auto groups = ParsePodGroups(name, text);
  if (groups.ok()) return "was accepted";
  EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(groups.status().message());
}

TEST(PodGroupsFile, IsReadHeadByHead) {
  const auto groups = ParsePodGroups("calibration", File("[[0,0],[0,1],[0,1]]"));
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ((*groups)->name, "calibration");
  EXPECT_EQ((*groups)->num_layers, 3);
  EXPECT_EQ((*groups)->num_kv_heads, 2);
  EXPECT_THAT((*groups)->lowest, ElementsAre(0, 0, 0, 1, 0, 1));
  EXPECT_EQ((*groups)->Lowest(2, 1), 1);
  EXPECT_TRUE((*groups)->IsShared(0, 0));
  EXPECT_FALSE((*groups)->IsShared(0, 1));
  EXPECT_TRUE((*groups)->IsShared(1, 1));
  EXPECT_FALSE((*groups)->IsShared(2, 0));
  EXPECT_FALSE((*groups)->IsSameForAllHeads());
  EXPECT_TRUE((*ParsePodGroups("a", File("[[0,0],[0,0],[2,2]]")))->IsSameForAllHeads());
}

TEST(PodGroupsFile, MaySayWhereItComesFrom) {
  EXPECT_TRUE(ParsePodGroups("a", File("[[0,0],[1,1],[2,2]]",
                                       R"(,"model":"m","delta":0.5,"q":64,"samples":8)"))
                  .ok());
}

TEST(PodGroupsFile, IsWrittenAsItIsRead) {
  const auto groups = ParsePodGroups("a", File("[[0,0],[0,1],[0,1]]"));
  ASSERT_TRUE(groups.ok());
  const auto again = ParsePodGroups("a", FormatPodGroups(**groups));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->lowest, (*groups)->lowest);
  EXPECT_EQ((*again)->num_kv_heads, 2);
}

TEST(PodGroupsFile, MustBeThisFormat) {
  EXPECT_THAT(Refusal(""), HasSubstr("pod groups calibration: it is not JSON"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("format is missing"));
  EXPECT_THAT(Refusal(File("[[0,0],[0,0],[0,0]]", R"(,"extra":1)")),
              HasSubstr("unknown field \"extra\""));
  std::string other = File("[[0,0],[0,0],[0,0]]");
  other.replace(other.find("ziggurat-pod-groups"), 8, "whatever");
  EXPECT_THAT(Refusal(other),
              HasSubstr("format must be \"ziggurat-pod-groups\", not \"whatever-pod-groups\""));
  std::string later = File("[[0,0],[0,0],[0,0]]");
  later.replace(later.find("\"version\":1"), 11, "\"version\":2");
  EXPECT_THAT(Refusal(later), HasSubstr("version must be 1, not 2"));
}

TEST(PodGroupsFile, MustHaveTheShapeThatItStates) {
  EXPECT_THAT(Refusal(File("{}")), HasSubstr("lowest must be an array of 3 layers"));
  EXPECT_THAT(Refusal(File("[[0,0],[0,0]]")), HasSubstr("lowest must be an array of 3 layers"));
  EXPECT_THAT(Refusal(File("[[0,0],[0],[0,0]]")),
              HasSubstr("lowest[1] must be an array of 2 heads"));
  for (const char* bad : {"0", "-1", "4097", "1e3", "\"3\"", "18446744073709551615", "null"}) {
    std::string text = File("[[0,0],[0,0],[0,0]]");
    text.replace(text.find("\"num_layers\":3"), 14, std::string("\"num_layers\":") + bad);
    EXPECT_THAT(Refusal(text), HasSubstr("num_layers must be an integer from 1 to 4096")) << bad;
  }
  // Deeper than any stack.
  std::string text = File("[[0,0],[0,0],[0,0]]");
  text.replace(text.find("\"num_layers\":3") + 13, 1,
               std::string(400000, '[') + std::string(400000, ']'));
  EXPECT_THAT(Refusal(text),
              HasSubstr("num_layers must be an integer from 1 to 4096, not an array"));
}

TEST(PodGroupsFile, MustGroupConsecutiveLayers) {
  EXPECT_THAT(Refusal(File("[[1,0],[0,0],[0,0]]")), HasSubstr("lowest[0][0] must be 0, not 1"));
  EXPECT_THAT(Refusal(File("[[0,0],[0,1],[0,0]]")),
              HasSubstr("lowest[2][1] must be 1 (a group with the layer below) or 2, not 0"));
  EXPECT_THAT(Refusal(File("[[0,0],[0,0],[0,1]]")), HasSubstr("lowest[2][1] must be 0"));
  for (const char* bad : {"3", "-1", "0.0", "\"0\"", "null", "[0]", "18446744073709551616"}) {
    EXPECT_THAT(Refusal(File(std::string("[[0,0],[0,0],[0,") + bad + "]]")),
                HasSubstr("lowest[2][1] must be"))
        << bad;
  }
}

TEST(PodGroupsFile, NeedsANameThatAPolicyTextCanHave) {
  for (const char* name : {"", "a b", "a,b", "a)", "a=b", "a+b", "\xff"}) {
    EXPECT_THAT(Refusal(File("[[0,0],[0,0],[0,0]]"), name), HasSubstr("the name of pod groups"))
        << name;
  }
  EXPECT_TRUE(ParsePodGroups("llama-3.1_8b", File("[[0,0],[0,0],[0,0]]")).ok());
  EXPECT_FALSE(ParsePodGroups(std::string(65, 'a'), File("[[0,0],[0,0],[0,0]]")).ok());
}

TEST(PodGroupsFile, OfGarbageIsRefusedAndNeverCrashes) {
  const std::string good = File("[[0,0],[0,1],[0,1]]");
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, 1, "0123456789[]{},:\"-."[random() % 19]);
      }
      if (text.empty()) text.push_back('[');
    }
    const auto groups = ParsePodGroups("g", text);
    if (!groups.ok()) {
      EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++accepted;
    ASSERT_EQ((*groups)->lowest.size(),
              static_cast<size_t>((*groups)->num_layers) * (*groups)->num_kv_heads);
  }
  EXPECT_LT(accepted, 2000);
  EXPECT_THAT(Refusal(std::string(100000, '[')), HasSubstr("not JSON"));
}

}  // namespace
}  // namespace ziggurat

// The table of policies that the build makes, and the page that describes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "compression/registry.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

TEST(PolicyRegistry, HoldsEveryPolicyOnceUnderItsName) {
  std::set<std::string_view> names;
  for (const PolicyDescriptor* policy : AllPolicies()) {
    EXPECT_TRUE(names.insert(policy->name).second) << policy->name;
    EXPECT_EQ(FindPolicy(policy->name), policy);
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"fp8", "full", "h2o", "int8", "kivi", "minicache",
                                            "pod", "pyramidkv", "simlayerkv", "snapkv", "squeeze",
                                            "streaming", "windowkv"}));
  EXPECT_EQ(FindPolicy("Full"), nullptr);
  EXPECT_EQ(FindPolicy(""), nullptr);
}

TEST(PolicyRegistry, HasOnlyWellFormedDescriptors) {
  for (const PolicyDescriptor* policy : AllPolicies()) {
    EXPECT_FALSE(policy->summary.empty()) << policy->name;
    ASSERT_NE(policy->make, nullptr) << policy->name;
    std::set<std::string_view> names;
    for (const ParameterSpec& parameter : policy->parameters) {
      const std::string where = std::string(policy->name) + "." + std::string(parameter.name);
      EXPECT_TRUE(names.insert(parameter.name).second) << where;
      EXPECT_FALSE(parameter.help.empty()) << where;
      const bool choice = parameter.type == ParameterType::kChoice;
      const double low = choice ? 0 : parameter.minimum;
      const double high =
          choice ? static_cast<double>(parameter.choices.size()) - 1 : parameter.maximum;
      EXPECT_LE(low, high) << where;
      EXPECT_LE(high, 1e15) << where << ": integers beyond this are not exact in a descriptor";
      if (parameter.only_with.has_value()) {
        EXPECT_FALSE(parameter.is_required()) << where;
      }
      EXPECT_TRUE(parameter.word.empty() || !choice) << where;
      if (parameter.default_value.has_value()) {
        EXPECT_GE(*parameter.default_value, low) << where;
        EXPECT_LE(*parameter.default_value, high) << where;
      }
    }
  }
}

TEST(PolicyRegistry, ShowsHowAPolicyIsWritten) {
  EXPECT_EQ(DescribeUsage(*FindPolicy("full")), "full");
  EXPECT_EQ(DescribeUsage(*FindPolicy("snapkv")), "snapkv(budget=,window=32,kernel=5,pool=avg)");
  EXPECT_THAT(
      DescribePolicies(),
      HasSubstr("      window: the last prompt tokens, whose attention selects and which are "
                "all kept; an integer from 1 to 1024; default 8\n"));
}

/// The part of docs/policies.md under the heading "### `name`".
std::string DocumentedSection(std::string_view name) {
  std::ifstream file(ZIGGURAT_SOURCE_DIR "/docs/policies.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  const std::string heading = "\n### `" + std::string(name) + "`\n";
  const size_t begin = page.find(heading);
  if (begin == std::string::npos) return "";
  return page.substr(begin, page.find("\n##", begin + heading.size()) - begin);
}

TEST(PolicyRegistry, IsDocumentedWithEveryParameterItsRangeAndDefault) {
  for (const PolicyDescriptor* policy : AllPolicies()) {
    const std::string section = DocumentedSection(policy->name);
    ASSERT_FALSE(section.empty()) << policy->name << " has no section in docs/policies.md";
    for (const ParameterSpec& parameter : policy->parameters) {
      const std::string row = "| `" + std::string(parameter.name) + "` | " +
                              DescribeRange(parameter) + " | " + DescribeDefault(parameter) + " |";
      EXPECT_TRUE(section.find(row) != std::string::npos)
          << "docs/policies.md: the section of " << policy->name << " has no row\n"
          << row << " ... |";
    }
  }
}

}  // namespace
}  // namespace ziggurat

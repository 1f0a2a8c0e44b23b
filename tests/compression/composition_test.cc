// What composed policies are: their names and texts, which pairs compose (the table of
// docs/policies.md), and what is said of the others.
#include "compression/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "compression/composition_rules.h"
#include "compression/policy_descriptor.h"
#include "compression/registry.h"
#include "tests/compression/plan_testing.h"
#include "tests/compression/policy_generator.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

/// Groups "alike" for all heads, and "mixed".
PolicyResources TwoCalibrations() {
  const auto make = [](std::string_view name, std::vector<int> lowest) {
    auto groups = std::make_shared<PodGroups>();
    groups->name = name;
    groups->num_layers = 4;
    groups->num_kv_heads = 2;
    groups->lowest = std::move(lowest);
    return groups;
  };
  return {{make("alike", {0, 0, 0, 0, 2, 2, 2, 2}), make("mixed", {0, 0, 0, 1, 0, 1, 0, 1})}};
}

std::string Canonical(std::string_view text) {
  const auto policy = ParsePolicy(text, TwoCalibrations());
  return policy.ok() ? (*policy)->ToString() : std::string(policy.status().message());
}

TEST(Composition, HasOneTextInWhicheverOrderItIsWritten) {
  const std::string expected =
      "simlayerkv(threshold=0.9,sinks=4,recent=1020,last=32,decide=prefill)+"
      "snapkv(budget=64,window=32,kernel=5,pool=avg)+kivi(bits=4,group=32,residual=32)";
  const std::string terms[] = {"simlayerkv", "snapkv(budget=64)", "kivi"};
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    EXPECT_EQ(Canonical(terms[order[0]] + "+" + terms[order[1]] + " + " + terms[order[2]]),
              expected);
  }
  EXPECT_EQ(Canonical(expected), expected);
  EXPECT_EQ(Parse(expected)->name(), "simlayerkv+snapkv+kivi");
}

TEST(Composition, PointsAtTheTermThatDoesNotFitAnyOther) {
  const std::string message = Canonical("simlayerkv + snapkv(budget=64) + streaming");
  EXPECT_THAT(message, HasSubstr("column 34: snapkv+streaming cannot be composed: both decide "
                                 "which tokens every layer keeps"));
  EXPECT_THAT(Canonical("int8+snapkv(budget=64)+int8"),
              HasSubstr("column 24: int8+int8 names the same policy twice"));
}

TEST(Composition, AsksEveryTermWhetherItSuitsTheModel) {
  EXPECT_FALSE(Parse("minicache+kivi(group=48)")->Check(TestModel(4)).ok());
  EXPECT_FALSE(Parse("minicache(start=3)+kivi")->Check(TestModel(4)).ok());
  EXPECT_TRUE(Parse("minicache+kivi")->Check(TestModel(4)).ok());
}

TEST(Composition, KeepsTheDecisionThatComesLater) {
  const CachePlan plan = Plan("kivi+pyramidkv(budget=64,shape=entropy)", 4, 500, 10);
  EXPECT_EQ(plan.decide, DecideAt::kPrompt);
  EXPECT_EQ(plan.importance, LayerImportance::kEntropy);
  EXPECT_EQ(plan.needs.stored_score_layers, 4);
  EXPECT_TRUE(plan.quantization.has_value());
  const std::vector<double> entropies = {1, 3, 0, 0};
  const auto layers =
      Parse("kivi+pyramidkv(budget=64,shape=entropy)")->Decide(TestModel(4), {500, 10}, entropies);
  // (64 - 8) * 4 = 224 pairs, a quarter and three quarters of them, and the window of 8.
  EXPECT_THAT(Kept(layers), testing::ElementsAre(64, 176, 8, 8));
}

/// A policy of which nothing is known but its traits.
class OfTraits final : public DescribedPolicy {
 public:
  explicit OfTraits(PolicyTraits traits)
      : DescribedPolicy(PolicyArguments(kDescriptor, {})), traits_(traits) {}
  PolicyTraits traits() const override { return traits_; }
  void Apply(const PolicyContext& /*context*/, const SequenceLimits& /*limits*/,
             CachePlan* /*plan*/) const override {}

 private:
  static constexpr PolicyDescriptor kDescriptor = {.name = "mine", .summary = "nothing"};
  PolicyTraits traits_;
};

TEST(Composition, OfTwoPoliciesThatSayOneThingOfAPlanIsRefused) {
  const auto other = Parse("simlayerkv");
  const auto& simlayerkv = dynamic_cast<const DescribedPolicy&>(*other);
  EXPECT_EQ(CheckComposable(OfTraits(kFindsLazyLayers), simlayerkv).message(),
            "mine+simlayerkv cannot be composed: both test layers for laziness, and a layer has "
            "one test");
  EXPECT_TRUE(CheckComposable(OfTraits(kDropsTokens | kReadsPrompt), simlayerkv).ok());
  const auto minicache = Parse("minicache"), pod = Parse("pod(groups=mixed)", TwoCalibrations());
  for (const auto& [traits, policy] :
       {std::pair{kMergesLayers, minicache}, std::pair{kSharesKeys, pod}}) {
    const auto& described = dynamic_cast<const DescribedPolicy&>(*policy);
    EXPECT_FALSE(CheckComposable(OfTraits(traits), described).ok()) << policy->name();
  }
}

// ---- The table of docs/policies.md
// ---------------------------------------------------------------

std::string ReadPage() {
  std::ifstream file(ZIGGURAT_SOURCE_DIR "/docs/policies.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A policy of each kind that the table has a row for.
std::string TextOf(const std::string& row) {
  static const std::map<std::string, std::string> kTexts = {
      {"snapkv", "snapkv(budget=64)"},
      {"pyramidkv", "pyramidkv(budget=64)"},
      {"pyramidkv, measured", "pyramidkv(budget=64,shape=gini)"},
      {"windowkv", "windowkv(budget=64)"},
      {"squeeze", "squeeze(budget=64)"},
      {"simlayerkv, decode", "simlayerkv(decide=decode)"},
      {"pod", "pod(groups=alike)"},
      {"pod, by head", "pod(groups=mixed)"}};
  const auto found = kTexts.find(row);
  return found == kTexts.end() ? row : found->second;
}

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  std::string cell;
  std::istringstream stream(line.substr(1));
  while (std::getline(stream, cell, '|')) {
    const size_t begin = cell.find_first_not_of(" `");
    const size_t end = cell.find_last_not_of(" `");
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

/// The lines of the table that starts with `head`.
std::vector<std::vector<std::string>> FindTable(const std::string& page, const std::string& head) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream stream(page.substr(std::min(page.size(), page.find(head))));
  std::string line;
  while (std::getline(stream, line) && line.starts_with("|")) rows.push_back(Cells(line));
  return rows;
}

/// Every part of `reason` between ellipses, which stand for a policy's name, in that order.
void ExpectParts(const std::string& message, const std::string& reason, const std::string& text) {
  const std::string ellipsis = "\u2026";
  size_t at = 0;
  for (size_t begin = 0; begin <= reason.size();) {
    const size_t end = std::min(reason.size(), reason.find(ellipsis, begin));
    const std::string part = reason.substr(begin, end - begin);
    at = message.find(part, at);
    ASSERT_NE(at, std::string::npos) << text << ": \"" << part << "\" is not in: " << message;
    begin = end + ellipsis.size();
  }
}

TEST(CompositionTable, OfTheDocumentationSaysWhatTheParserDoes) {
  const std::string page = ReadPage();
  std::map<std::string, std::string> reasons;
  for (const auto& row : FindTable(page, "| letter | why not |")) {
    if (row[0].size() == 1) reasons[row[0]] = row[1];
  }
  const auto table = FindTable(page, "| composes |");
  ASSERT_GT(table.size(), 2u) << "docs/policies.md has no table of compositions";
  int composed = 0, refused = 0;
  for (size_t r = 2; r < table.size(); ++r) {
    for (size_t c = 1; c < table[0].size(); ++c) {
      const std::string& one = table[r][0];
      const std::string& other = table[0][c];
      ASSERT_LT(c, table[r].size()) << one;
      const std::string& cell = table[r][c];
      if (cell.empty()) continue;  // the same pair stands elsewhere
      for (const std::string& text :
           {TextOf(one) + "+" + TextOf(other), TextOf(other) + "+" + TextOf(one)}) {
        const auto policy = ParsePolicy(text, TwoCalibrations());
        if (cell == "yes") {
          EXPECT_TRUE(policy.ok()) << text << ": " << policy.status();
          ++composed;
          continue;
        }
        ++refused;
        ASSERT_FALSE(policy.ok()) << text << " composes, but the table says " << cell;
        ASSERT_TRUE(reasons.contains(cell)) << text << ": letter " << cell;
        ExpectParts(std::string(policy.status().message()), reasons[cell], text);
      }
    }
  }
  // Every pair of different policies, in both orders.
  const int policies = static_cast<int>(AllPolicies().size());
  EXPECT_GE(composed + refused, policies * (policies - 1));
  EXPECT_GT(composed, 40);
  EXPECT_GT(refused, 40);
}

TEST(CompositionTable, HasEveryPairOfPolicies) {
  const auto table = FindTable(ReadPage(), "| composes |");
  ASSERT_GT(table.size(), 2u);
  std::map<std::pair<std::string, std::string>, bool> filled;
  for (size_t r = 2; r < table.size(); ++r) {
    for (size_t c = 1; c < table[r].size(); ++c) {
      if (table[r][c].empty()) continue;
      filled[{table[r][0], table[0][c]}] = true;
      filled[{table[0][c], table[r][0]}] = true;
    }
  }
  for (const PolicyDescriptor* one : AllPolicies()) {
    for (const PolicyDescriptor* other : AllPolicies()) {
      if (one == other) continue;
      const std::pair<std::string, std::string> pair(one->name, other->name);
      EXPECT_TRUE(filled.contains(pair))
          << "docs/policies.md: the table of what composes has no cell for " << pair.first << "+"
          << pair.second;
    }
  }
}

// ---- Properties --------------------------------------------------------------------------------

RC_GTEST_PROP(CompositionProperty, DoesNotDependOnTheOrderOfTerms, ()) {
  const PolicyResources resources = TwoCalibrations();
  const auto draw = [] {
    std::string text =
        DrawPolicyText(*AllPolicies()[*rc::gen::inRange<size_t>(0, AllPolicies().size())]);
    const size_t groups = text.find("calibration");
    if (groups != std::string::npos) text.replace(groups, 11, "mixed");
    return text;
  };
  const std::string first = draw(), second = draw();
  const auto one = ParsePolicy(first + "+" + second, resources);
  const auto other = ParsePolicy(second + "+" + first, resources);
  RC_ASSERT(one.ok() == other.ok());
  if (one.ok()) RC_ASSERT((*one)->ToString() == (*other)->ToString());
}

}  // namespace
}  // namespace ziggurat

// Composition with policies that do compose: none of the built-in ones does yet, so these are made
// here.
#include "compression/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "compression/registry.h"

namespace ziggurat {
namespace {

/// `first+second`, remembering only its text.
class Pair final : public Policy {
 public:
  Pair(std::string_view maker, const Policy& first, const Policy& second)
      : text_(std::string(maker) + "[" + first.ToString() + "+" + second.ToString() + "]") {}
  std::string ToString() const override { return text_; }
  std::string_view name() const override { return "pair"; }
  CachePlan Plan(const PolicyContext&, int, int) const override { return {}; }

 private:
  std::string text_;
};

using Shared = std::shared_ptr<const Policy>;

absl::StatusOr<Shared> ComposeOuter(const Shared& first, const Shared& second) {
  return std::make_shared<Pair>("outer", *first, *second);
}
absl::StatusOr<Shared> ComposeInner(const Shared& first, const Shared& second) {
  return std::make_shared<Pair>("inner", *first, *second);
}
absl::StatusOr<Shared> RefuseToCompose(const Shared&, const Shared&) {
  return absl::InvalidArgumentError("a ring cannot be quantized");
}

class Composition : public testing::Test {
 protected:
  static ComposedTerm Term(const PolicyDescriptor& descriptor) {
    const PolicyDescriptor* full = FindPolicy("full");
    return {&descriptor, full->make(PolicyArguments(*full, {}))};
  }

  const PolicyDescriptor outer_ = {.name = "outer", .summary = "", .compose = ComposeOuter};
  const PolicyDescriptor inner_ = {.name = "inner", .summary = "", .compose = ComposeInner};
  const PolicyDescriptor plain_ = {.name = "plain", .summary = ""};
  const PolicyDescriptor other_ = {.name = "other", .summary = ""};
  const PolicyDescriptor refusing_ = {
      .name = "refusing", .summary = "", .compose = RefuseToCompose};
};

TEST_F(Composition, AsksTheLaterTermFirst) {
  const auto pair = ComposePolicies(Term(inner_), Term(outer_));
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(pair->policy->ToString(), "outer[full+full]");
  EXPECT_EQ(pair->descriptor, &outer_);
}

TEST_F(Composition, AsksTheFirstTermWhereTheLaterDoesNotCompose) {
  const auto pair = ComposePolicies(Term(inner_), Term(plain_));
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(pair->policy->ToString(), "inner[full+full]");
}

TEST_F(Composition, GoesOnWithWhatWasComposed) {
  const auto pair = ComposePolicies(Term(inner_), Term(plain_));
  ASSERT_TRUE(pair.ok()) << pair.status();
  const auto triple = ComposePolicies(*pair, Term(outer_));
  ASSERT_TRUE(triple.ok()) << triple.status();
  EXPECT_EQ(triple->policy->ToString(), "outer[inner[full+full]+full]");
}

TEST_F(Composition, PassesOnTheReasonOfARefusal) {
  const auto pair = ComposePolicies(Term(inner_), Term(refusing_));
  EXPECT_EQ(pair.status(), absl::InvalidArgumentError("a ring cannot be quantized"));
}

TEST_F(Composition, RefusesTwoThatDoNotComposeAndOneTwice) {
  EXPECT_THAT(std::string(ComposePolicies(Term(plain_), Term(other_)).status().message()),
              testing::HasSubstr("plain+other cannot be composed"));
  EXPECT_THAT(std::string(ComposePolicies(Term(outer_), Term(outer_)).status().message()),
              testing::HasSubstr("twice"));
}

}  // namespace
}  // namespace ziggurat

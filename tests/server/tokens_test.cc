#include "server/security/tokens.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace ziggurat {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFirst[] = "0123456789abcdef";
constexpr char kSecond[] = "abc-._~+/=ABC012";

NamedFile File(const std::string& text) {
  return {.flag = "--auth-token-file", .path = "/run/tokens", .text = text};
}

TEST(TokensTest, AreOneALineWithComments) {
  const auto tokens = TokenSet::Parse(
      File(absl::StrCat("# of the gateway\n", kFirst, "\n\n  # of the tests\r\n ", kSecond)));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ((*tokens)->size(), 2u);
  EXPECT_TRUE((*tokens)->Contains(kFirst));
  EXPECT_TRUE((*tokens)->Contains(kSecond));
}

TEST(TokensTest, OnlyWholeOnesCount) {
  const auto tokens = TokenSet::Parse(File(kFirst));
  ASSERT_TRUE(tokens.ok());
  for (const char* wrong : {"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "#"}) {
    EXPECT_FALSE((*tokens)->Contains(wrong)) << wrong;
  }
}

TEST(TokensTest, FilesWithoutTokensOrWithBadOnesAreRefusedAndNeverQuoted) {
  const std::pair<std::string, const char*> cases[] = {
      {"# nothing\n\n", "holds no token"},
      {std::string(kFirst) + "\nshortish\n", "line 2 has 8 characters, must have from 16"},
      {"white space in here", "line 1 has characters other than"},
      {"quotes\"in-the-middle", "line 1 has characters other than"},
      {std::string(1025, 'x'), "line 1 has 1025 characters"}};
  for (const auto& [text, why] : cases) {
    const auto tokens = TokenSet::Parse(File(text));
    ASSERT_FALSE(tokens.ok()) << text;
    EXPECT_THAT(std::string(tokens.status().message()),
                AllOf(HasSubstr("--auth-token-file /run/tokens: "), HasSubstr(why),
                      Not(HasSubstr("shortish")), Not(HasSubstr("quotes"))));
  }
}

TEST(NamedFileTest, HasAtMostAMebibyte) {
  const TemporaryFolder folder;
  const std::string path = (folder / "file").string();
  const auto read = [&](size_t bytes) {
    WriteFile(path, std::string(bytes, 'x'));
    return ReadNamedFile("--tls-cert", path).status();
  };
  EXPECT_TRUE(read(1 << 20).ok());
  EXPECT_THAT(std::string(read((1 << 20) + 1).message()), HasSubstr("has more than 1048576 bytes"));
}

TEST(TokensTest, AreFoundInAuthorizationHeaders) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer abc"), "abc");
  for (const char* none : {"", "Bearer", "Bearerabc", "Basic abc", "abc", " Bearer abc"}) {
    EXPECT_EQ(BearerToken(none), "") << none;
  }
  EXPECT_EQ(BasicPassword("Basic " + absl::Base64Escape("any:a:b")), "a:b");
  EXPECT_EQ(BasicPassword("Basic " + absl::Base64Escape(":abc")), "abc");
  for (const char* none : {"", "Basic", "Basic *", "Bearer OmFiYw==", "Basic YWJj"}) {
    EXPECT_EQ(BasicPassword(none), "") << none;
  }
}

}  // namespace
}  // namespace ziggurat

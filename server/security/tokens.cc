#include "server/security/tokens.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ziggurat {
namespace {

// RFC 6750, section 2.1: b64token.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(c) || std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

// "Bearer x" -> "x" for the scheme "Bearer", whose case does not matter.
std::string_view AfterScheme(std::string_view authorization, std::string_view scheme) {
  if (authorization.size() <= scheme.size() || authorization[scheme.size()] != ' ' ||
      !absl::EqualsIgnoreCase(std::string(authorization.substr(0, scheme.size())),
                              std::string(scheme))) {
    return {};
  }
  return authorization.substr(scheme.size() + 1);
}

}  // namespace

std::string WhyNoToken(std::string_view text) {
  if (!std::all_of(text.begin(), text.end(), IsTokenCharacter)) {
    return "has characters other than letters, digits and -._~+/=";
  }
  if (text.size() < TokenSet::kMinChars || text.size() > TokenSet::kMaxChars) {
    return absl::StrCat("has ", text.size(), " characters, must have from ", TokenSet::kMinChars,
                        " to ", TokenSet::kMaxChars, " (`openssl rand -hex 32` makes a good one)");
  }
  return {};
}

absl::StatusOr<std::vector<std::string>> ParseTokens(const NamedFile& file) {
  std::vector<std::string> tokens;
  int line_number = 0;
  for (const absl::string_view raw : absl::StrSplit(file.text, '\n')) {
    ++line_number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line.front() == '#') continue;
    tokens.emplace_back(line);
    if (const std::string wrong = WhyNoToken(tokens.back()); !wrong.empty()) {
      return file.Wrong(absl::StrCat("the token in line ", line_number, " ", wrong));
    }
  }
  if (tokens.empty()) return file.Wrong("holds no token");
  return tokens;
}

absl::StatusOr<std::shared_ptr<const TokenSet>> TokenSet::Parse(const NamedFile& file) {
  const absl::StatusOr<std::vector<std::string>> tokens = ParseTokens(file);
  if (!tokens.ok()) return tokens.status();
  std::vector<Sha256Digest> digests;
  for (const std::string& token : *tokens) digests.push_back(Sha256(token));
  return std::shared_ptr<const TokenSet>(new TokenSet(std::move(digests)));
}

bool TokenSet::Contains(std::string_view token) const {
  // Equal lengths, no early end: the time tells nothing of how near a guess was.
  const Sha256Digest shown = Sha256(token);
  bool found = false;
  for (const Sha256Digest& digest : digests_) {
    found |= CRYPTO_memcmp(digest.data(), shown.data(), shown.size()) == 0;
  }
  return found;
}

std::string_view BearerToken(std::string_view authorization) {
  return AfterScheme(authorization, "Bearer");
}

std::string BasicPassword(std::string_view authorization) {
  std::string decoded;
  if (!absl::Base64Unescape(std::string(AfterScheme(authorization, "Basic")), &decoded)) return {};
  const size_t colon = decoded.find(':');
  return colon == std::string::npos ? std::string() : decoded.substr(colon + 1);
}

}  // namespace ziggurat

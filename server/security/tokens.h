// Bearer tokens: who may call, by a secret that each call carries.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/security/named_file.h"

namespace ziggurat {

/// The tokens of --auth-token-file, of which only digests are kept. Immutable; any thread.
class TokenSet {
 public:
  /// One token a line; blank lines, and lines that begin with '#', are none. INVALID_ARGUMENT names
  /// the line, never what is in it, where a token is shorter than kMinChars or has characters that
  /// a header may not have; or where there is no token at all.
  static absl::StatusOr<std::shared_ptr<const TokenSet>> Parse(const NamedFile& file);

  /// Whether `token` is one of them. Takes as long for a wrong one as for a right one.
  bool Contains(std::string_view token) const;
  size_t size() const { return digests_.size(); }

  /// `openssl rand -hex 16` has 32. What is shorter might be guessed over the network.
  static constexpr size_t kMinChars = 16;
  static constexpr size_t kMaxChars = 1024;

 private:
  explicit TokenSet(std::vector<Sha256Digest> digests) : digests_(std::move(digests)) {}

  std::vector<Sha256Digest> digests_;
};

/// The tokens of a file as TokenSet::Parse describes it, with its errors.
absl::StatusOr<std::vector<std::string>> ParseTokens(const NamedFile& file);
/// Empty where `text` may be a token, else what is wrong with it ("has 3 characters, ...").
std::string WhyNoToken(std::string_view text);

/// What follows "Bearer " in the value of a header `authorization`; empty where it is none.
std::string_view BearerToken(std::string_view authorization);
/// The password of "Basic BASE64(user:password)": how browsers show a token. Empty where it is
/// none.
std::string BasicPassword(std::string_view authorization);

}  // namespace ziggurat

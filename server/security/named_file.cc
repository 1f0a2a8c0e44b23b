#include "server/security/named_file.h"

#include <openssl/sha.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/input_file.h"

namespace ziggurat {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

}  // namespace

absl::Status NamedFile::Wrong(std::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path.string(), ": ", std::string(why)));
}

absl::StatusOr<NamedFile> ReadNamedFile(std::string flag, const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = ReadGivenFile(path, kMaxBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat(flag, ": cannot read ", text.status().message()));
  }
  NamedFile file{.flag = std::move(flag), .path = path, .text = *std::move(text)};
  if (file.text.empty()) return file.Wrong("is empty");
  return file;
}

Sha256Digest Sha256(std::string_view bytes) {
  Sha256Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

}  // namespace ziggurat

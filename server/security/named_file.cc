#include "server/security/named_file.h"

#include <openssl/sha.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

}  // namespace

absl::Status NamedFile::Wrong(std::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path.string(), ": ", std::string(why)));
}

absl::StatusOr<NamedFile> ReadNamedFile(std::string flag, const std::filesystem::path& path) {
  NamedFile file{.flag = std::move(flag), .path = path, .text = {}};
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  file.text.resize(kMaxBytes + 1);
  stream.read(file.text.data(), static_cast<std::streamsize>(file.text.size()));
  if (!stream.is_open() || stream.bad()) {
    const char* why = errno != 0 ? std::strerror(errno) : "it is no file";
    return absl::NotFoundError(absl::StrCat(file.flag, ": cannot read ", path.string(), ": ", why));
  }
  file.text.resize(static_cast<size_t>(stream.gcount()));
  if (file.text.empty()) return file.Wrong("is empty");
  if (file.text.size() > kMaxBytes) return file.Wrong("has more than a mebibyte");
  return file;
}

Sha256Digest Sha256(std::string_view bytes) {
  Sha256Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

}  // namespace ziggurat

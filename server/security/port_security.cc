#include "server/security/port_security.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

constexpr std::chrono::seconds kPollPeriod{1};

std::string Describe(const TlsIdentity& identity) { return identity.Describe(); }
std::string Describe(const TokenSet& tokens) {
  return absl::StrCat(tokens.size(), tokens.size() == 1 ? " token" : " tokens");
}

absl::StatusOr<std::shared_ptr<const TlsIdentity>> ParseIdentity(
    const std::vector<NamedFile>& files) {
  std::optional<NamedFile> client_ca;
  if (files.size() > 2) client_ca = files[2];
  return TlsIdentity::Parse(files[0], files[1], client_ca, absl::Now());
}

absl::StatusOr<std::shared_ptr<const TokenSet>> ParseTokenSet(const std::vector<NamedFile>& files) {
  return TokenSet::Parse(files[0]);
}

/// A pipe would keep who looks again and again waiting.
absl::StatusOr<NamedFile> ReadRegularFile(const std::string& flag,
                                          const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return NamedFile{flag, path, ""}.Wrong("is no regular file");
  }
  return ReadNamedFile(flag, path);
}

}  // namespace

template <typename T>
typename ReloadedFiles<T>::Look ReloadedFiles<T>::LookAtFiles() const {
  Look look{.files = std::vector<NamedFile>(), .digest = {}};
  std::string digests;
  for (const Named& named : files_) {
    absl::StatusOr<NamedFile> file = ReadRegularFile(named.flag, named.path);
    if (!file.ok()) return {file.status(), Sha256(std::string(file.status().message()))};
    for (const uint8_t byte : Sha256(file->text)) digests.push_back(static_cast<char>(byte));
    look.files->push_back(*std::move(file));
  }
  look.digest = Sha256(digests);
  return look;
}

template <typename T>
absl::Status ReloadedFiles<T>::Load() {
  Look look = LookAtFiles();
  if (!look.files.ok()) return look.files.status();
  absl::StatusOr<std::shared_ptr<const T>> parsed = parse_(*look.files);
  if (!parsed.ok()) return parsed.status();
  current_ = *std::move(parsed);
  seen_ = settled_ = look.digest;
  spdlog::info("{} {}: {}", files_[0].flag, files_[0].path.string(), Describe(*current_));
  return absl::OkStatus();
}

template <typename T>
void ReloadedFiles<T>::Poll() {
  const Look look = LookAtFiles();
  const bool is_calm = look.digest == seen_;
  seen_ = look.digest;
  if (!is_calm) return;
  if (look.digest == settled_) {
    refusal_.clear();  // were the same put there again, it would be said again
    return;
  }
  absl::StatusOr<std::shared_ptr<const T>> parsed =
      look.files.ok() ? parse_(*look.files) : look.files.status();
  if (!parsed.ok()) {
    // Tried again at every look: a certificate may only be not valid yet.
    if (refusal_ != parsed.status().message()) {
      refusal_ = std::string(parsed.status().message());
      spdlog::warn("{}; what was read before stays in force", refusal_);
    }
    return;
  }
  settled_ = look.digest;
  refusal_.clear();
  spdlog::info("{} {} read anew: {}", files_[0].flag, files_[0].path.string(), Describe(**parsed));
  const std::lock_guard lock(mutex_);
  current_ = *std::move(parsed);
}

template <typename T>
std::shared_ptr<const T> ReloadedFiles<T>::Current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

template class ReloadedFiles<TlsIdentity>;
template class ReloadedFiles<TokenSet>;

absl::StatusOr<std::shared_ptr<const PortSecurity>> PortSecurity::Start(
    const SecurityConfig& config) {
  auto security = std::shared_ptr<PortSecurity>(new PortSecurity());
  if (config.has_tls()) {
    std::vector<ReloadedFiles<TlsIdentity>::Named> files = {{"--tls-cert", config.tls_cert},
                                                            {"--tls-key", config.tls_key}};
    if (!config.tls_client_ca.empty()) files.push_back({"--tls-client-ca", config.tls_client_ca});
    security->asks_for_certificate_ = files.size() > 2;
    security->identity_ =
        std::make_unique<ReloadedFiles<TlsIdentity>>(std::move(files), ParseIdentity);
    if (absl::Status status = security->identity_->Load(); !status.ok()) return status;
  }
  if (!config.auth_token_file.empty()) {
    security->tokens_ = std::make_unique<ReloadedFiles<TokenSet>>(
        std::vector<ReloadedFiles<TokenSet>::Named>{{"--auth-token-file", config.auth_token_file}},
        ParseTokenSet);
    if (absl::Status status = security->tokens_->Load(); !status.ok()) return status;
  }
  if (security->has_tls() || security->asks_for_token()) {
    security->watcher_ = std::thread([watched = security.get()] { watched->Watch(); });
  }
  return security;
}

PortSecurity::~PortSecurity() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void PortSecurity::Watch() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kPollPeriod, [this] { return is_over_; })) {
    if (identity_) identity_->Poll();
    if (tokens_) tokens_->Poll();
  }
}

}  // namespace ziggurat

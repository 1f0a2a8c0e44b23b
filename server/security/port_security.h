// What both ports ask of whoever calls, kept up to date with the files that say it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/security/named_file.h"
#include "server/security/security_config.h"
#include "server/security/tls_identity.h"
#include "server/security/tokens.h"

namespace ziggurat {

/// Files, and the latest good thing that was made of them. They are looked at anew by Poll: a
/// change counts once two looks in a row have seen the same, so that a file that is being written,
/// or half of a pair, is not taken for what it will be. What is wrong is logged, once, and
/// what was there before stays. Any thread may ask for Current, one calls Poll.
template <typename T>
class ReloadedFiles {
 public:
  struct Named {
    std::string flag;
    std::filesystem::path path;
  };
  using Parse =
      std::function<absl::StatusOr<std::shared_ptr<const T>>(const std::vector<NamedFile>&)>;

  ReloadedFiles(std::vector<Named> files, Parse parse)
      : files_(std::move(files)), parse_(std::move(parse)) {}

  /// The first look: an error where nothing good is there.
  absl::Status Load();
  void Poll();
  std::shared_ptr<const T> Current() const;

 private:
  struct Look {
    absl::StatusOr<std::vector<NamedFile>> files;
    Sha256Digest digest;  ///< of all content, or of the error
  };
  Look LookAtFiles() const;

  const std::vector<Named> files_;
  const Parse parse_;
  Sha256Digest seen_{};     ///< at the last look
  Sha256Digest settled_{};  ///< what has been taken
  std::string refusal_;     ///< why what is there now was not; empty where it was
  mutable std::mutex mutex_;
  std::shared_ptr<const T> current_;  ///< guarded by mutex_
};

/// Shared by gRPC and HTTP. Any thread.
class PortSecurity {
 public:
  /// Reads the files of a valid configuration, and again every second on a thread of its own. The
  /// error names flag, file and reason.
  static absl::StatusOr<std::shared_ptr<const PortSecurity>> Start(const SecurityConfig& config);
  ~PortSecurity();

  bool has_tls() const { return identity_ != nullptr; }
  bool asks_for_certificate() const { return asks_for_certificate_; }
  bool asks_for_token() const { return tokens_ != nullptr; }

  /// Where has_tls(): what new connections are shown.
  std::shared_ptr<const TlsIdentity> Identity() const { return identity_->Current(); }
  /// Where asks_for_token(): whether this is one of them now.
  bool AcceptsToken(std::string_view token) const { return tokens_->Current()->Contains(token); }

 private:
  PortSecurity() = default;
  void Watch();

  bool asks_for_certificate_ = false;
  std::unique_ptr<ReloadedFiles<TlsIdentity>> identity_;
  std::unique_ptr<ReloadedFiles<TokenSet>> tokens_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;  ///< guarded by mutex_
  std::thread watcher_;
};

}  // namespace ziggurat

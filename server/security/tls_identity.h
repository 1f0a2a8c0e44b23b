// The certificate that a daemon shows, its key, and whose clients it lets in.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/security/named_file.h"

namespace ziggurat {

struct FreeTlsContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using OwnedTlsContext = std::unique_ptr<SSL_CTX, FreeTlsContext>;

/// INVALID_ARGUMENT where `file` is not one or several certificates in PEM.
absl::Status CheckCertificates(const NamedFile& file);

/// A pair that was found to be good. Immutable; any thread.
class TlsIdentity {
 public:
  /// All files in PEM: the certificate with those of intermediate authorities behind it, its key
  /// without a passphrase, and the authorities of clients where these must show a certificate.
  /// INVALID_ARGUMENT names flag, file and reason: what cannot be parsed, a key of another
  /// certificate, a key or signature too weak for OpenSSL, a certificate out of its time at `now`.
  static absl::StatusOr<std::shared_ptr<const TlsIdentity>> Parse(
      const NamedFile& certificate, const NamedFile& key, const std::optional<NamedFile>& client_ca,
      absl::Time now);

  const std::string& certificate_pem() const { return certificate_pem_; }
  const std::string& key_pem() const { return key_pem_; }
  const std::string& client_ca_pem() const { return client_ca_pem_; }  ///< empty: none
  /// For a server that shows this; clients' certificates are verified where they show one.
  SSL_CTX* context() const { return context_.get(); }
  absl::Time expires() const { return expires_; }
  /// "CN=daemon, until 2027-01-31T10:00:00Z"
  std::string Describe() const;

 private:
  TlsIdentity() = default;
  absl::Status LoadCertificates(const NamedFile& file, absl::Time now);
  absl::Status LoadKey(const NamedFile& file, const NamedFile& certificate);
  absl::Status LoadClientAuthorities(const NamedFile& file, absl::Time now);

  std::string certificate_pem_;
  std::string key_pem_;
  std::string client_ca_pem_;
  std::string subject_;
  absl::Time expires_;
  OwnedTlsContext context_;
};

}  // namespace ziggurat

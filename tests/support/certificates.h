// Certificates for tests, made on the spot.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace ziggurat {

/// In PEM.
struct CertificateAndKey {
  std::string certificate;
  std::string key;
};

struct CertificateOptions {
  std::string alternative_names = "DNS:daemon.test,IP:127.0.0.1";
  absl::Duration begins = -absl::Hours(1);  ///< from now
  absl::Duration ends = absl::Hours(24);    ///< from now
};

class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& name);

  const std::string& certificate() const { return certificate_pem_; }  ///< in PEM
  /// For servers and clients, with a key of its own.
  CertificateAndKey Issue(const std::string& name, const CertificateOptions& options = {}) const;

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

  static Key NewKey();
  /// Signed by `authority`, or by itself where that is null.
  static Certificate Sign(const std::string& name, EVP_PKEY* key, const CertificateAuthority* by,
                          const CertificateOptions& options);

  Key key_;
  Certificate certificate_;
  std::string certificate_pem_;
};

}  // namespace ziggurat

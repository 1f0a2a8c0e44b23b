#include "tests/support/certificates.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace ziggurat {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "certificates for tests: %s failed\n", what);
  std::abort();
}

template <typename Write>
std::string ToPem(Write write) {
  BIO* out = BIO_new(BIO_s_mem());
  Require(write(out) == 1, "writing PEM");
  char* data = nullptr;
  const auto size = BIO_get_mem_data(out, &data);
  std::string pem(data, static_cast<size_t>(size));
  BIO_free(out);
  return pem;
}

std::string CertificatePem(X509* certificate) {
  return ToPem([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  Require(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "an extension");
  X509_EXTENSION_free(extension);
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& name)
    : key_(NewKey()),
      certificate_(Sign(name, key_.get(), nullptr, {})),
      certificate_pem_(CertificatePem(certificate_.get())) {}

CertificateAndKey CertificateAuthority::Issue(const std::string& name,
                                              const CertificateOptions& options) const {
  const Key key = NewKey();
  const Certificate certificate = Sign(name, key.get(), this, options);
  return {CertificatePem(certificate.get()), ToPem([&](BIO* out) {
            return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

CertificateAuthority::Key CertificateAuthority::NewKey() {
  Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);  // RSA keys take seconds to make
  Require(key != nullptr, "a key");
  return key;
}

CertificateAuthority::Certificate CertificateAuthority::Sign(const std::string& name, EVP_PKEY* key,
                                                             const CertificateAuthority* by,
                                                             const CertificateOptions& options) {
  static std::atomic<int> serial = 1;
  Certificate certificate(X509_new(), &X509_free);
  X509* const x509 = certificate.get();
  X509_set_version(x509, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), serial++);
  X509_gmtime_adj(X509_getm_notBefore(x509), absl::ToInt64Seconds(options.begins));
  X509_gmtime_adj(X509_getm_notAfter(x509), absl::ToInt64Seconds(options.ends));
  X509_set_pubkey(x509, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(
      x509, X509_get_subject_name(by != nullptr ? by->certificate_.get() : certificate.get()));
  AddExtension(x509, NID_basic_constraints, by == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  if (by != nullptr) AddExtension(x509, NID_subject_alt_name, options.alternative_names);
  Require(X509_sign(x509, by != nullptr ? by->key_.get() : key, EVP_sha256()) > 0, "signing");
  return certificate;
}

}  // namespace ziggurat

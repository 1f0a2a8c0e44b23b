#include "server/security/tls_identity.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL would ask for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// OpenSSL's reason for what has just failed, its queue emptied.
std::string LastError() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): its type
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "unknown error";
}

absl::Time ToTime(const ASN1_TIME* time) {
  tm fields{};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTM(fields, absl::UTCTimeZone());
}

std::string ToText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string SubjectOf(const X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(out.get(), &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : "no subject";
}

// Empty where the certificate is good at `now`.
std::string WhyOutOfTime(const X509* certificate, absl::Time now) {
  const absl::Time first = ToTime(X509_get0_notBefore(certificate));
  const absl::Time last = ToTime(X509_get0_notAfter(certificate));
  const std::string who = absl::StrCat("the certificate of ", SubjectOf(certificate));
  if (now > last) return absl::StrCat(who, " has expired, on ", ToText(last));
  if (now < first) return absl::StrCat(who, " is not valid before ", ToText(first));
  return {};
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const NamedFile& file) {
  ERR_clear_error();
  std::vector<Certificate> certificates;
  const Bio reader = Reader(file.text);
  while (X509* certificate = PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string error = LastError();
  if (is_end && certificates.empty()) return file.Wrong("holds no certificate in PEM");
  if (!is_end) return file.Wrong(absl::StrCat("holds a certificate that is broken: ", error));
  return certificates;
}

}  // namespace

absl::Status CheckCertificates(const NamedFile& file) { return ReadCertificates(file).status(); }

absl::StatusOr<std::shared_ptr<const TlsIdentity>> TlsIdentity::Parse(
    const NamedFile& certificate, const NamedFile& key, const std::optional<NamedFile>& client_ca,
    absl::Time now) {
  ERR_clear_error();
  auto identity = std::shared_ptr<TlsIdentity>(new TlsIdentity());
  identity->context_.reset(SSL_CTX_new(TLS_server_method()));
  if (identity->context_ == nullptr) {
    return absl::InternalError(absl::StrCat("OpenSSL: ", LastError()));
  }
  SSL_CTX_set_min_proto_version(identity->context(), TLS1_2_VERSION);
  if (absl::Status status = identity->LoadCertificates(certificate, now); !status.ok()) {
    return status;
  }
  if (absl::Status status = identity->LoadKey(key, certificate); !status.ok()) return status;
  if (client_ca.has_value()) {
    if (absl::Status status = identity->LoadClientAuthorities(*client_ca, now); !status.ok()) {
      return status;
    }
  }
  return identity;
}

absl::Status TlsIdentity::LoadCertificates(const NamedFile& file, absl::Time now) {
  const absl::StatusOr<std::vector<Certificate>> chain = ReadCertificates(file);
  if (!chain.ok()) return chain.status();
  X509* const leaf = chain->front().get();
  expires_ = ToTime(X509_get0_notAfter(leaf));
  subject_ = SubjectOf(leaf);
  // An intermediate that has expired may be one of two paths, which clients choose from.
  if (const std::string wrong = WhyOutOfTime(leaf, now); !wrong.empty()) return file.Wrong(wrong);
  if (SSL_CTX_use_certificate(context(), leaf) != 1) {
    return file.Wrong(absl::StrCat("cannot be used: ", LastError()));
  }
  for (size_t i = 1; i < chain->size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context(), (*chain)[i].get()) != 1) {
      return file.Wrong(absl::StrCat("its certificate ", i + 1, " cannot be used: ", LastError()));
    }
  }
  certificate_pem_ = file.text;
  return absl::OkStatus();
}

absl::Status TlsIdentity::LoadKey(const NamedFile& file, const NamedFile& certificate) {
  const Bio reader = Reader(file.text);
  const Key key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    const std::string error = LastError();
    return file.Wrong(
        absl::StrCat("holds no private key in PEM without a passphrase (", error, ")"));
  }
  if (X509_check_private_key(SSL_CTX_get0_certificate(context()), key.get()) != 1) {
    ERR_clear_error();
    return file.Wrong(
        absl::StrCat("is not the key of the certificate in ", certificate.path.string()));
  }
  if (SSL_CTX_use_PrivateKey(context(), key.get()) != 1) {
    return file.Wrong(absl::StrCat("cannot be used: ", LastError()));
  }
  key_pem_ = file.text;
  return absl::OkStatus();
}

absl::Status TlsIdentity::LoadClientAuthorities(const NamedFile& file, absl::Time now) {
  const absl::StatusOr<std::vector<Certificate>> authorities = ReadCertificates(file);
  if (!authorities.ok()) return authorities.status();
  std::string wrong;
  bool has_valid = false;
  for (const Certificate& authority : *authorities) {
    const std::string out_of_time = WhyOutOfTime(authority.get(), now);
    has_valid |= out_of_time.empty();
    if (wrong.empty()) wrong = out_of_time;
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context()), authority.get());
    SSL_CTX_add_client_CA(context(), authority.get());
  }
  // One that has expired among others is usual while authorities change.
  if (!has_valid) return file.Wrong(wrong);
  SSL_CTX_set_verify(context(), SSL_VERIFY_PEER, nullptr);
  client_ca_pem_ = file.text;
  return absl::OkStatus();
}

std::string TlsIdentity::Describe() const {
  return absl::StrCat(subject_, ", until ", ToText(expires_));
}

}  // namespace ziggurat

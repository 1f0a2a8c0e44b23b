#include "server/security/tls_identity.h"

#include <openssl/pem.h>

#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"

namespace ziggurat {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const CertificateAuthority& Authority() {
  static const CertificateAuthority authority("authority");
  return authority;
}

absl::StatusOr<std::shared_ptr<const TlsIdentity>> Parse(
    const std::string& certificate, const std::string& key,
    const std::optional<std::string>& client_ca = std::nullopt, absl::Time now = absl::Now()) {
  std::optional<NamedFile> ca;
  if (client_ca) ca = NamedFile{.flag = "--tls-client-ca", .path = "/ca.crt", .text = *client_ca};
  return TlsIdentity::Parse({.flag = "--tls-cert", .path = "/tls.crt", .text = certificate},
                            {.flag = "--tls-key", .path = "/tls.key", .text = key}, ca, now);
}

void ExpectWrong(const absl::StatusOr<std::shared_ptr<const TlsIdentity>>& identity,
                 const std::string& where, const std::string& why) {
  EXPECT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(identity.status().message()), AllOf(HasSubstr(where), HasSubstr(why)));
}

TEST(TlsIdentityTest, TakesAPairWithItsChainAndClientAuthorities) {
  const CertificateAndKey pair = Authority().Issue("daemon");
  const auto identity =
      Parse(pair.certificate + Authority().certificate(), pair.key, Authority().certificate());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_THAT((*identity)->Describe(), HasSubstr("CN=daemon, until 20"));
  EXPECT_LT((*identity)->expires() - absl::Now(), absl::Hours(25));
  EXPECT_EQ((*identity)->key_pem(), pair.key);
  EXPECT_EQ((*identity)->client_ca_pem(), Authority().certificate());
  STACK_OF(X509)* chain = nullptr;
  ASSERT_EQ(SSL_CTX_get0_chain_certs((*identity)->context(), &chain), 1);
  EXPECT_EQ(sk_X509_num(chain), 1) << "what stands behind the certificate is shown too";
  EXPECT_TRUE((SSL_CTX_get_verify_mode((*identity)->context()) & SSL_VERIFY_PEER) != 0);
}

TEST(TlsIdentityTest, SaysWhichFileIsWrongAndWhy) {
  const CertificateAndKey pair = Authority().Issue("daemon");
  const CertificateAndKey other = Authority().Issue("other");
  ExpectWrong(Parse("", pair.key), "--tls-cert /tls.crt", "holds no certificate");
  ExpectWrong(Parse(pair.key, pair.key), "--tls-cert /tls.crt", "holds no certificate");
  ExpectWrong(Parse(pair.certificate, pair.certificate), "--tls-key /tls.key", "no private key");
  ExpectWrong(Parse(pair.certificate, other.key), "--tls-key /tls.key",
              "is not the key of the certificate in /tls.crt");
  ExpectWrong(Parse(pair.certificate, pair.key, "none"), "--tls-client-ca /ca.crt",
              "holds no certificate");
  const std::string half = pair.certificate.substr(0, pair.certificate.size() / 2);
  ExpectWrong(Parse(half, pair.key), "--tls-cert /tls.crt", "");
  std::string garbled = pair.certificate;
  garbled[garbled.size() / 2] = '*';
  ExpectWrong(Parse(garbled, pair.key), "--tls-cert /tls.crt", "broken");
  ExpectWrong(Parse(pair.certificate + garbled, pair.key), "--tls-cert /tls.crt", "broken");
}

std::string Encrypted(const std::string& key_pem) {
  BIO* in = BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  BIO* out = BIO_new(BIO_s_mem());
  const unsigned char passphrase[] = {'o', 'p', 'e', 'n'};
  EXPECT_EQ(PEM_write_bio_PrivateKey(out, key, EVP_aes_128_cbc(), passphrase, sizeof(passphrase),
                                     nullptr, nullptr),
            1);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(out, &data);
  std::string encrypted(data, static_cast<size_t>(size));
  EVP_PKEY_free(key);
  BIO_free(in);
  BIO_free(out);
  return encrypted;
}

TEST(TlsIdentityTest, DoesNotAskForAPassphrase) {
  const CertificateAndKey pair = Authority().Issue("daemon");
  const std::string encrypted = Encrypted(pair.key);
  ASSERT_THAT(encrypted, HasSubstr("ENCRYPTED"));
  ExpectWrong(Parse(pair.certificate, encrypted), "--tls-key /tls.key", "without a passphrase");
}

TEST(TlsIdentityTest, LooksAtTheTime) {
  const CertificateAndKey pair = Authority().Issue("daemon");
  ExpectWrong(Parse(pair.certificate, pair.key, {}, absl::Now() + absl::Hours(25)), "--tls-cert",
              "CN=daemon has expired, on 20");
  ExpectWrong(Parse(pair.certificate, pair.key, {}, absl::Now() - absl::Hours(2)), "--tls-cert",
              "CN=daemon is not valid before 20");
  // Authorities count while one of them is good.
  const CertificateAndKey gone = Authority().Issue("gone", {.ends = -absl::Seconds(5)});
  ExpectWrong(Parse(pair.certificate, pair.key, gone.certificate), "--tls-client-ca",
              "CN=gone has expired");
  EXPECT_TRUE(Parse(pair.certificate, pair.key, gone.certificate + Authority().certificate()).ok());
  EXPECT_TRUE(Parse(pair.certificate, pair.key, Authority().certificate() + gone.certificate).ok());
}

}  // namespace
}  // namespace ziggurat

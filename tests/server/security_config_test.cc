#include "server/security/security_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config.h"

namespace ziggurat {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LoopbackTest, IsWhatNoOtherMachineReaches) {
  for (const char* host : {"127.0.0.1", "127.9.8.7", "::1", "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "::ffff:0.0.0.0",
                           "fe80::1", "nosuchhost.invalid", "0", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(SecurityConfigTest, RefusesPlainTextThatOthersReachUnlessToldTo) {
  ServeConfig config;
  config.model = "any";
  EXPECT_TRUE(Validate(config).ok());
  config.grpc.host = "0.0.0.0";
  const absl::Status grpc = Validate(config);
  EXPECT_EQ(grpc.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(grpc.message()),
              AllOf(HasSubstr("--listen: 0.0.0.0"), HasSubstr("--allow-plain-text")));
  config.security.auth_token_file = "tokens";  // would be sent in plain text
  EXPECT_FALSE(Validate(config).ok());
  config.security.allow_plain_text = true;
  EXPECT_TRUE(Validate(config).ok());

  config.security = {};
  config.grpc.host = "127.0.0.1";
  config.http.host = "::";
  EXPECT_THAT(std::string(Validate(config).message()), HasSubstr("--http: ::"));
  config.security.tls_cert = "tls.crt";
  config.security.tls_key = "tls.key";
  EXPECT_TRUE(Validate(config).ok());
}

TEST(SecurityConfigTest, RefusesHalfOfWhatTlsTakes) {
  SecurityConfig config;
  config.tls_cert = "tls.crt";
  EXPECT_THAT(std::string(Validate(config).message()), HasSubstr("--tls-key"));
  config = {};
  config.tls_key = "tls.key";
  EXPECT_THAT(std::string(Validate(config).message()), HasSubstr("--tls-cert"));
  config = {};
  config.tls_client_ca = "ca.crt";
  EXPECT_THAT(std::string(Validate(config).message()), HasSubstr("--tls-client-ca"));
}

}  // namespace
}  // namespace ziggurat

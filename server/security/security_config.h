// What protects the daemon's two ports, as flags say it.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"

namespace ziggurat {

struct SecurityConfig {
  std::filesystem::path tls_cert;         ///< PEM; empty: both ports speak plain text
  std::filesystem::path tls_key;          ///< PEM
  std::filesystem::path tls_client_ca;    ///< PEM; empty: clients need no certificate
  std::filesystem::path auth_token_file;  ///< empty: calls need no token
  bool allow_plain_text = false;          ///< on addresses that others can reach

  bool has_tls() const { return !tls_cert.empty(); }
};

/// Whether `host`, a name or an address, is reached from this machine only: every address that it
/// stands for is a loopback address. A name that cannot be resolved is not.
bool IsLoopback(const std::string& host);

/// INVALID_ARGUMENT where flags contradict each other.
absl::Status Validate(const SecurityConfig& config);

/// INVALID_ARGUMENT where the port that `flag` puts at `host` would speak plain text to others than
/// this machine, and nobody has said that it may.
absl::Status CheckExposure(const SecurityConfig& config, const std::string& flag,
                           const std::string& host);

}  // namespace ziggurat

// Clients of a daemon that is protected, and the files that it is protected with.
#pragma once

#include <grpcpp/channel.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/daemon.h"
#include "tests/support/certificates.h"

namespace ziggurat::e2e {

/// Files that all change at once, the way that Kubernetes mounts a secret: links into a folder to
/// which `..data` is a link, which is replaced.
class SecretFolder {
 public:
  using Files = std::map<std::string, std::string>;  ///< name -> content

  explicit SecretFolder(const Files& files) { Put(files); }
  void Put(const Files& files);
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  /// tls.crt and tls.key of the pair, and ca.crt.
  static Files Tls(const CertificateAndKey& pair, const CertificateAuthority& clients);
  /// --tls-cert and --tls-key, and --tls-client-ca where clients must show a certificate.
  std::vector<std::string> Flags(bool mutual = false) const;

 private:
  TemporaryFolder folder_;
  int version_ = 0;
};

/// A connection of its own over TLS, whose server must be of `authority`.
std::shared_ptr<grpc::Channel> TlsChannel(const Daemon& daemon,
                                          const CertificateAuthority& authority,
                                          const std::optional<CertificateAndKey>& shown = {});

/// What a call of GetModel came to.
struct Answer {
  grpc::Status status;
  std::string server;  ///< common name in the certificate that the server has shown
};
/// `authorization`: the whole value; empty: none is sent.
Answer Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization = "");

}  // namespace ziggurat::e2e

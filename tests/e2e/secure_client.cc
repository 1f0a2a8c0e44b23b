#include "tests/e2e/secure_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ziggurat::e2e {

void SecretFolder::Put(const Files& files) {
  const std::string version = absl::StrCat("..version", ++version_);
  std::filesystem::create_directory(folder_ / version);
  for (const auto& [name, content] : files) {
    WriteFile(folder_ / version / name, content);
    if (!std::filesystem::exists(std::filesystem::symlink_status(folder_ / name))) {
      std::filesystem::create_symlink("..data/" + name, folder_ / name);
    }
  }
  std::filesystem::create_symlink(version, folder_ / "..data_new");
  std::filesystem::rename(folder_ / "..data_new", folder_ / "..data");
}

SecretFolder::Files SecretFolder::Tls(const CertificateAndKey& pair,
                                      const CertificateAuthority& clients) {
  return {{"tls.crt", pair.certificate}, {"tls.key", pair.key}, {"ca.crt", clients.certificate()}};
}

std::vector<std::string> SecretFolder::Flags(bool mutual) const {
  std::vector<std::string> flags = {"--tls-cert", file("tls.crt"), "--tls-key", file("tls.key")};
  if (mutual) flags.insert(flags.end(), {"--tls-client-ca", file("ca.crt")});
  return flags;
}

std::shared_ptr<grpc::Channel> TlsChannel(const Daemon& daemon,
                                          const CertificateAuthority& authority,
                                          const std::optional<CertificateAndKey>& shown) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority.certificate();
  if (shown) {
    options.pem_cert_chain = shown->certificate;
    options.pem_private_key = shown->key;
  }
  return daemon.NewChannel(grpc::SslCredentials(options));
}

Answer Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization) {
  Answer answer;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  v1::GetModelResponse model;
  answer.status = v1::Ziggurat::NewStub(channel)->GetModel(&context, {}, &model);
  const auto names = context.auth_context()->FindPropertyValues("x509_common_name");
  if (!names.empty()) answer.server.assign(names[0].data(), names[0].size());
  return answer;
}

}  // namespace ziggurat::e2e

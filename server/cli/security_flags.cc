#include "server/cli/security_flags.h"

namespace ziggurat {

void AddSecurityFlags(CLI::App& serve, SecurityConfig& config) {
  serve
      .add_option(
          "--tls-cert", config.tls_cert,
          "Certificate of both ports, with intermediate ones behind it; PEM, read anew when "
          "it changes")
      ->type_name("FILE");
  serve
      .add_option("--tls-key", config.tls_key,
                  "Key of that certificate; PEM, without a passphrase, read anew too")
      ->type_name("FILE");
  serve
      .add_option("--tls-client-ca", config.tls_client_ca,
                  "Clients must show a certificate that one of these authorities has signed; PEM, "
                  "read anew too")
      ->type_name("FILE");
  serve
      .add_option("--auth-token-file", config.auth_token_file,
                  "Calls must carry one of these tokens, one a line, # for comments; read anew too")
      ->type_name("FILE");
  serve.add_flag("--allow-plain-text", config.allow_plain_text,
                 "Without TLS, listen on addresses that other machines reach, too");
}

}  // namespace ziggurat

// Generation as a client sees it.
#pragma once

#include <grpcpp/client_context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/daemon.h"
#include "tests/support/generation.h"

namespace ziggurat::e2e {

struct CallOptions {
  std::optional<absl::Duration> deadline = {};  ///< absent: ten minutes, so that no test hangs
  /// Of the call, for those who cancel it from another thread, whenever that may be. Fresh.
  std::shared_ptr<grpc::ClientContext> context = {};
  /// After every message; false cancels the call.
  std::function<bool(const Generation&)> on_message = {};
};

Generation Generate(v1::Ziggurat::StubInterface& stub, const v1::GenerateRequest& request,
                    const CallOptions& options = {});
inline Generation Generate(Daemon& daemon, const v1::GenerateRequest& request,
                           const CallOptions& options = {}) {
  return Generate(daemon.stub(), request, options);
}

/// English of the bundled model's kind: `sentences` sentences, each with a space before it. The
/// same seed gives the same text.
std::string PlainEnglish(uint32_t seed, int sentences);

/// Prompts of exact lengths for the bundled model, cut out of plain English.
class PromptSource {
 public:
  explicit PromptSource(Daemon& daemon, uint32_t seed = 1);
  /// BOS and `tokens` - 1 ids of running text.
  std::vector<int32_t> Make(int tokens, std::mt19937& random) const;

 private:
  std::vector<int32_t> ids_;
};

}  // namespace ziggurat::e2e

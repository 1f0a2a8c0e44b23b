// A compression policy decides what each layer of a sequence keeps. It never touches a tensor: it
// says which statistics it needs of a layer and answers with a symbolic edit; a backend measures
// and moves (docs/architecture.md, "Policies decide, kernels measure and move").
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "compression/cache_plan.h"

namespace ziggurat {

/// What a policy may know of the model.
struct PolicyContext {
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
};

/// An immutable, validated policy: safe to share between threads and requests.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Canonical text with every parameter, which parses back to an equal policy.
  virtual std::string ToString() const = 0;
  /// Name in the registry, e.g. "pyramidkv".
  virtual std::string_view name() const = 0;
  /// Upper bounds for a prompt of `prompt_tokens` (>= 1) that generates up to `max_new_tokens`
  /// (>= 0). The cache receives one token for each generated one but the last.
  virtual CachePlan Plan(const PolicyContext& context, int prompt_tokens,
                         int max_new_tokens) const = 0;
};

/// Parses `name(param=value,...)`, composed with '+'. INVALID_ARGUMENT names the column (1-based),
/// what was found and what is allowed.
absl::StatusOr<std::shared_ptr<const Policy>> ParsePolicy(std::string_view text);

}  // namespace ziggurat

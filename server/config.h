// What `ziggurat serve` is told, apart from how it is told: plain values and their validation.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"
#include "server/security/security_config.h"

namespace ziggurat {

/// Where a server listens. Port 0: any free one.
struct Endpoint {
  std::string host;
  int port = 0;
};

/// "127.0.0.1:50051", "[::1]:0", "0.0.0.0:9400". INVALID_ARGUMENT says what is wrong.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);
std::string FormatEndpoint(const Endpoint& endpoint);

/// Reads PoD groups given as NAME=FILE. INVALID_ARGUMENT, and what InputFile::Open says, name the
/// flag's value and what is wrong with it, or with the file.
absl::StatusOr<std::vector<std::shared_ptr<const PodGroups>>> LoadPodGroups(
    const std::vector<std::string>& names_and_files);

/// "auto", "cpu" or "cuda:N".
struct DeviceChoice {
  static constexpr int kCpu = -1;
  bool is_auto = false;  ///< the first GPU, where one can be used
  int ordinal = kCpu;
};
absl::StatusOr<DeviceChoice> ParseDevice(std::string_view text);

/// Of a device's free memory, for the pool: "90%". INVALID_ARGUMENT where it is not above 0 and at
/// most 100 percent.
absl::StatusOr<double> ParseMemoryShare(std::string_view text);

/// ServeConfig::prefill_tokens: "auto" (0), or how many. INVALID_ARGUMENT where it is neither.
absl::StatusOr<int> ParsePrefillTokens(std::string_view text);

/// "f32" or "bf16".
absl::StatusOr<ElementType> ParseElementType(std::string_view text);

struct ServeConfig {
  std::filesystem::path model;  ///< a Hugging Face folder
  Endpoint grpc = {"127.0.0.1", 50051};
  Endpoint http = {"127.0.0.1", 9400};
  SecurityConfig security;  ///< of both
  size_t kv_cache_bytes = size_t{512} << 20;
  double kv_cache_share = 0;  ///< above 0: of a GPU's memory that is free after loading, instead
  std::string device = "auto";
  std::string compression = "full";
  std::vector<std::string> allow_compression;  ///< policy names; empty: all
  PolicyResources resources;                   ///< loaded at start; what policy texts may name
  ElementType dtype = ElementType::kBf16;
  int threads = 0;  ///< 0: one for each CPU it may use
  int max_running = 256;
  int max_queue = 1024;
  absl::Duration max_queue_time = absl::ZeroDuration();  ///< EngineOptions::max_queue_time
  int max_prompt_tokens = 0;                             ///< 0: the model's context less one
  int default_max_tokens = 512;
  int prefill_tokens = 0;            ///< of a batch; 0: PrefillTokens' default
  int short_prefill_tokens = 1024;   ///< DecoderOptions::short_prefill_tokens
  int max_message_bytes = 16 << 20;  ///< of one gRPC message from a client
  int max_streams = 0;               ///< open Generate calls; 0: twice max_running + max_queue
  std::string log_level = "info";
  std::string metrics_compat;  ///< "vllm": its metric names beside ours; empty: ours only
  bool page = true;            ///< the HTTP port serves the page and its JSON
  absl::Duration prefill_slice = absl::Milliseconds(100);  ///< EngineOptions::prefill_slice
  absl::Duration drain_timeout = absl::Seconds(30);
  bool check_integrity = false;  ///< prove after every step that no block is lost; for tests

  /// Tokens of the longest prompt that is taken, by a model with that context.
  int LongestPrompt(int max_context_tokens) const;
  /// Prompt tokens that are computed as one batch. On a CPU, whose products are as fast with 1,024
  /// rows as with more, a larger batch would only keep the first tokens of its prompts back.
  int PrefillTokens(bool is_cpu) const;
  /// Tokens that the first lane of the prefill workspace is made for: the larger of one batch and
  /// the longest prompt.
  int WorkspaceTokens(int max_context_tokens, bool is_cpu) const;
  int StreamLimit() const { return max_streams > 0 ? max_streams : 2 * (max_running + max_queue); }
};

/// Limits that depend on the model. INVALID_ARGUMENT.
absl::Status CheckLimitsOfModel(const ServeConfig& config, int max_context_tokens, int num_layers,
                                size_t block_bytes);
/// The size of the pool; `text` says it in the message. INVALID_ARGUMENT.
absl::Status CheckPoolBytes(const std::string& text, size_t bytes, int num_layers,
                            size_t block_bytes);
/// A pool in the host's memory is no larger than that. INVALID_ARGUMENT.
absl::Status CheckPoolFits(const ServeConfig& config, size_t machine_bytes);
/// A share of free memory is for GPUs. INVALID_ARGUMENT.
absl::Status CheckMemoryShare(const ServeConfig& config, bool is_cpu);
/// INVALID_ARGUMENT names the flag, its value and what is allowed.
absl::Status Validate(const ServeConfig& config);

}  // namespace ziggurat

// What `ziggurat serve` is told, apart from how it is told: plain values and their validation.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "block_manager/cache_format.h"
#include "compression/policy.h"

namespace ziggurat {

/// Where a server listens. Port 0: any free one.
struct Endpoint {
  std::string host;
  int port = 0;
};

/// "127.0.0.1:50051", "[::1]:0", "0.0.0.0:9400". INVALID_ARGUMENT says what is wrong.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);
std::string FormatEndpoint(const Endpoint& endpoint);

/// Reads PoD groups given as NAME=FILE. INVALID_ARGUMENT or NOT_FOUND name the flag's value and
/// what is wrong with it, or with the file.
absl::StatusOr<std::vector<std::shared_ptr<const PodGroups>>> LoadPodGroups(
    const std::vector<std::string>& names_and_files);

/// "f32" or "bf16".
absl::StatusOr<ElementType> ParseElementType(std::string_view text);

struct ServeConfig {
  std::filesystem::path model;  ///< a Hugging Face folder
  Endpoint grpc = {"127.0.0.1", 50051};
  Endpoint http = {"127.0.0.1", 9400};
  size_t kv_cache_bytes = size_t{512} << 20;
  std::string compression = "full";
  std::vector<std::string> allow_compression;  ///< policy names; empty: all
  PolicyResources resources;                   ///< loaded at start; what policy texts may name
  std::optional<ElementType> dtype;            ///< absent: bf16 where the CPU is fast at it
  int threads = 0;                             ///< 0: one for each core
  int max_running = 256;
  int max_queue = 1024;
  int max_prompt_tokens = 0;  ///< 0: the model's context less one
  int default_max_tokens = 512;
  int prefill_tokens = 8192;
  int max_message_bytes = 16 << 20;  ///< of one gRPC message from a client
  int max_streams = 0;               ///< open Generate calls; 0: twice max_running + max_queue
  std::string log_level = "info";
  std::string metrics_compat;  ///< "vllm": its metric names beside ours; empty: ours only
  absl::Duration drain_timeout = absl::Seconds(30);
  bool check_integrity = false;  ///< prove after every step that no block is lost; for tests

  int StreamLimit() const { return max_streams > 0 ? max_streams : 2 * (max_running + max_queue); }
};

/// INVALID_ARGUMENT names the flag, its value and what is allowed.
absl::Status Validate(const ServeConfig& config);

}  // namespace ziggurat

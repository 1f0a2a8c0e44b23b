#include "server/config.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compression/registry.h"
#include "model/input_file.h"
#include "server/byte_size.h"
#include "server/log.h"

namespace ziggurat {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;

absl::Status CheckRange(const std::string& flag, int64_t value, int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ": must be from ", lowest, " to ", highest));
}

absl::Status CheckMetricsCompat(const std::string& compat) {
  if (compat.empty() || compat == "vllm") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--metrics-compat is '", compat, "': must be vllm"));
}

absl::Status CheckPolicies(const ServeConfig& config) {
  if (auto policy = ParsePolicy(config.compression, config.resources); !policy.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--compression '", config.compression, "': ", policy.status().message()));
  }
  for (const std::string& name : config.allow_compression) {
    if (FindPolicy(name) != nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat("--allow-compression: '", name,
                                                   "' is no policy: must be of ",
                                                   absl::StrJoin(PolicyNames(), ", ")));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const ServeConfig& config) {
  const absl::StatusOr<DeviceChoice> device = ParseDevice(config.device);
  if (!device.ok()) return device.status();
  return CheckMemoryShare(config, !device->is_auto && device->ordinal == DeviceChoice::kCpu);
}

absl::Status CheckSeconds(const char* flag, absl::Duration time, int most) {
  if (time >= absl::ZeroDuration() && time <= absl::Seconds(most)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " is ", absl::ToDoubleSeconds(time),
                                                 ": must be from 0 to ", most, " seconds"));
}

absl::Status CheckPorts(const ServeConfig& config) {
  const bool are_same = config.http.host == config.grpc.host &&
                        config.http.port == config.grpc.port && config.http.port != 0;
  if (!are_same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--http is ", FormatEndpoint(config.http),
                                                 ": that is --listen's, so it must be another"));
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  const auto malformed = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is no HOST:PORT: ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return malformed("no colon");
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return malformed("an IPv6 address is written in brackets, [::1]:50051");
  }
  if (host.empty()) return malformed("the host is empty (0.0.0.0 is every address)");
  int port = -1;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port < 0 ||
      port > 65535) {
    return malformed("the port must be from 0 to 65535");
  }
  return Endpoint{std::string(host), port};
}

std::string FormatEndpoint(const Endpoint& endpoint) {
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  return is_ipv6 ? absl::StrCat("[", endpoint.host, "]:", endpoint.port)
                 : absl::StrCat(endpoint.host, ":", endpoint.port);
}

absl::StatusOr<std::vector<std::shared_ptr<const PodGroups>>> LoadPodGroups(
    const std::vector<std::string>& names_and_files) {
  constexpr size_t kMaxFileBytes = 16 << 20;
  std::vector<std::shared_ptr<const PodGroups>> all;
  for (const std::string& text : names_and_files) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (equals == std::string::npos || equals + 1 == text.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--pod-groups '", text, "' is no NAME=FILE"));
    }
    if (absl::Status status = CheckPodGroupsName(name); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--pod-groups '", text, "' is no NAME=FILE: ", status.message()));
    }
    for (const auto& other : all) {
      if (other->name != name) continue;
      return absl::InvalidArgumentError(absl::StrCat("--pod-groups names '", name, "' twice"));
    }
    const std::filesystem::path path = text.substr(equals + 1);
    const absl::StatusOr<std::string> json = ReadInputFile(path, kMaxFileBytes);
    if (!json.ok()) {
      return absl::Status(json.status().code(),
                          absl::StrCat("--pod-groups ", name, ": ", json.status().message()));
    }
    auto groups = ParsePodGroups(name, *json);
    if (!groups.ok()) {
      return absl::Status(groups.status().code(),
                          absl::StrCat("--pod-groups ", name, ", ", path.string(), ": ",
                                       std::string(groups.status().message())));
    }
    all.push_back(*std::move(groups));
  }
  return all;
}

absl::StatusOr<DeviceChoice> ParseDevice(std::string_view text) {
  if (text == "auto") return DeviceChoice{.is_auto = true, .ordinal = 0};
  if (text == "cpu") return DeviceChoice{};
  constexpr std::string_view kCuda = "cuda:";
  DeviceChoice choice;
  if (text.starts_with(kCuda)) {
    const std::string_view number = text.substr(kCuda.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), choice.ordinal);
    if (error == std::errc() && end == number.data() + number.size() && choice.ordinal >= 0) {
      return choice;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("--device: '", std::string(text),
                                                 "' is no device: must be auto, cpu or cuda:N"));
}

absl::StatusOr<double> ParseMemoryShare(std::string_view text) {
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error == std::errc() && std::string_view(end, text.data() + text.size() - end) == "%" &&
      percent > 0 && percent <= 100) {
    return percent / 100;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is no share: must be above 0% and at most 100%, such as 90%"));
}

absl::StatusOr<int> ParsePrefillTokens(std::string_view text) {
  if (text == "auto") return 0;
  int tokens = 0;
  if (absl::SimpleAtoi(std::string(text), &tokens) && tokens >= 1 && tokens <= kMostTokens)
    return tokens;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' must be auto, or from 1 to ", kMostTokens, " tokens"));
}

absl::StatusOr<ElementType> ParseElementType(std::string_view text) {
  for (ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    if (text == ElementTypeName(type)) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text), "' is no dtype: must be bf16 or f32"));
}

int ServeConfig::LongestPrompt(int max_context_tokens) const {
  const int most = max_context_tokens - 1;  // room for one new token
  return max_prompt_tokens > 0 ? std::min(max_prompt_tokens, most) : most;
}

int ServeConfig::PrefillTokens(bool is_cpu) const {
  if (prefill_tokens > 0) return prefill_tokens;
  return is_cpu ? 1024 : 8192;
}

int ServeConfig::WorkspaceTokens(int max_context_tokens, bool is_cpu) const {
  return std::max(PrefillTokens(is_cpu), LongestPrompt(max_context_tokens));
}

absl::Status CheckLimitsOfModel(const ServeConfig& config, int max_context_tokens, int num_layers,
                                size_t block_bytes) {
  if (config.max_prompt_tokens >= max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-prompt-tokens is ", config.max_prompt_tokens, ": at most ", max_context_tokens - 1,
        ", which leaves one new token room in the model's context of ", max_context_tokens));
  }
  if (config.kv_cache_share > 0) return absl::OkStatus();
  return CheckPoolBytes(absl::StrCat(config.kv_cache_bytes, " bytes"), config.kv_cache_bytes,
                        num_layers, block_bytes);
}

absl::Status CheckPoolBytes(const std::string& text, size_t bytes, int num_layers,
                            size_t block_bytes) {
  const size_t least = block_bytes * static_cast<size_t>(num_layers);
  const size_t most = block_bytes * std::numeric_limits<uint32_t>::max();
  if (bytes >= least && bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kv-cache-memory is ", text, ": must be from ", least, " bytes, a block of ",
                   block_bytes, " for each of ", num_layers, " layers, to 2^32 - 1 blocks"));
}

absl::Status CheckPoolFits(const ServeConfig& config, size_t machine_bytes) {
  if (config.kv_cache_bytes <= machine_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kv-cache-memory is ", FormatByteSize(config.kv_cache_bytes),
                   ", more than the memory of this machine, or of its control group: ",
                   FormatByteSize(machine_bytes)));
}

absl::Status CheckMemoryShare(const ServeConfig& config, bool is_cpu) {
  if (!is_cpu || config.kv_cache_share == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--kv-cache-memory as a share is for GPUs: on the CPU name its bytes, such as 2GiB");
}

absl::Status Validate(const ServeConfig& config) {
  if (config.model.empty()) return absl::InvalidArgumentError("--model is missing");
  const absl::Status checks[] = {
      CheckRange("--kv-cache-memory", static_cast<int64_t>(config.kv_cache_bytes), 1,
                 int64_t{1} << 60),
      CheckRange("--threads", config.threads, 0, 1024),
      CheckRange("--max-running", config.max_running, 1, 65536),
      CheckRange("--max-queue", config.max_queue, 1, 1 << 20),
      CheckSeconds("--max-queue-time", config.max_queue_time, 3600),
      CheckRange("--max-prompt-tokens", config.max_prompt_tokens, 0, kMostTokens),
      CheckRange("--default-max-tokens", config.default_max_tokens, 1, kMostTokens),
      CheckRange("--prefill-tokens", config.prefill_tokens, 0, kMostTokens),
      CheckRange("--short-prefill-tokens", config.short_prefill_tokens, 0, kMostTokens),
      CheckRange("--max-message-bytes", config.max_message_bytes, 1024, kMostTokens),
      CheckRange("--max-streams", config.max_streams, 0, 1 << 20),
      CheckSeconds("--prefill-slice", config.prefill_slice, 60),
      CheckSeconds("--drain-timeout", config.drain_timeout, 86400),
      ParseLogLevel(config.log_level).status(),
      CheckDevice(config),
      CheckMetricsCompat(config.metrics_compat),
      CheckPolicies(config),
      Validate(config.security),
      CheckExposure(config.security, "--listen", config.grpc.host),
      CheckExposure(config.security, "--http", config.http.host),
      CheckPorts(config),
  };
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

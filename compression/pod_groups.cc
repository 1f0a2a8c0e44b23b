#include "compression/pod_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"

namespace ziggurat {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "ziggurat-pod-groups";
constexpr int kVersion = 1;
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeads = 4096;

constexpr std::string_view kRequiredFields[] = {"format", "version", "num_layers", "num_kv_heads",
                                                "lowest"};
/// PodOrigin.
constexpr std::string_view kOtherFields[] = {"model", "delta", "q", "samples"};

/// Reads one file; the messages carry its name.
class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) {}

  absl::StatusOr<std::shared_ptr<const PodGroups>> Read(std::string_view text) const {
    if (absl::Status status = CheckPodGroupsName(name_); !status.ok()) return status;
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    // The parser takes a NUL for the end.
    if (json.is_discarded() || text.find('\0') != std::string_view::npos) {
      return Fail("it is not JSON");
    }
    if (absl::Status status = CheckFields(json); !status.ok()) return status;
    auto groups = std::make_shared<PodGroups>();
    groups->name = name_;
    for (const auto& [field, maximum, value] :
         {std::tuple{"num_layers", kMaxLayers, &groups->num_layers},
          std::tuple{"num_kv_heads", kMaxHeads, &groups->num_kv_heads}}) {
      const std::optional<int> number = ReadInteger(json.at(field), 1, maximum);
      if (!number.has_value()) {
        return Fail(fmt::format("{} must be an integer from 1 to {}, not {}", field, maximum,
                                Show(json.at(field))));
      }
      *value = *number;
    }
    if (absl::Status status = ReadLowest(json.at("lowest"), groups.get()); !status.ok()) {
      return status;
    }
    if (absl::Status status = ReadOrigin(json, &groups->origin); !status.ok()) return status;
    return groups;
  }

 private:
  absl::Status Fail(std::string_view message) const {
    return absl::InvalidArgumentError(fmt::format("pod groups {}: {}", name_, message));
  }

  /// Arrays and objects by their kind: printing recurses, and they may nest to any depth.
  static std::string Show(const Json& json) {
    if (json.is_structured()) return fmt::format("an {}", json.type_name());
    const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 40 ? text.substr(0, 40) + "..." : text;
  }

  static std::optional<int> ReadInteger(const Json& json, int minimum, int maximum) {
    if (!json.is_number_integer()) return std::nullopt;
    // A huge unsigned number must not turn negative on the way.
    if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(maximum)) {
      return std::nullopt;
    }
    const auto value = json.get<int64_t>();
    if (value < minimum || value > maximum) return std::nullopt;
    return static_cast<int>(value);
  }

  absl::Status CheckFields(const Json& json) const {
    if (!json.is_object()) return Fail("it must be an object");
    for (std::string_view field : kRequiredFields) {
      if (!json.contains(std::string(field))) return Fail(fmt::format("{} is missing", field));
    }
    for (const auto& [field, value] : json.items()) {
      const auto is_field = [&field = field](std::string_view known) { return known == field; };
      if (std::none_of(std::begin(kRequiredFields), std::end(kRequiredFields), is_field) &&
          std::none_of(std::begin(kOtherFields), std::end(kOtherFields), is_field)) {
        return Fail(fmt::format("unknown field {}", Show(Json(field))));
      }
    }
    if (json.at("format") != Json(kFormat)) {
      return Fail(fmt::format("format must be \"{}\", not {}", kFormat, Show(json.at("format"))));
    }
    if (json.at("version") != kVersion) {
      return Fail(fmt::format("version must be {}, not {}", kVersion, Show(json.at("version"))));
    }
    return absl::OkStatus();
  }

  absl::Status ReadLowest(const Json& json, PodGroups* groups) const {
    if (!json.is_array() || json.size() != static_cast<size_t>(groups->num_layers)) {
      return Fail(fmt::format("lowest must be an array of {} layers", groups->num_layers));
    }
    groups->lowest.reserve(static_cast<size_t>(groups->num_layers) * groups->num_kv_heads);
    for (int layer = 0; layer < groups->num_layers; ++layer) {
      const Json& heads = json.at(layer);
      if (!heads.is_array() || heads.size() != static_cast<size_t>(groups->num_kv_heads)) {
        return Fail(
            fmt::format("lowest[{}] must be an array of {} heads", layer, groups->num_kv_heads));
      }
      for (int head = 0; head < groups->num_kv_heads; ++head) {
        if (absl::Status status = ReadEntry(heads.at(head), layer, head, groups); !status.ok()) {
          return status;
        }
      }
    }
    return absl::OkStatus();
  }

  /// A layer either starts a group or belongs to that of the layer below.
  absl::Status ReadEntry(const Json& json, int layer, int head, PodGroups* groups) const {
    const std::optional<int> lowest = ReadInteger(json, 0, layer);
    const int below = layer > 0 ? groups->Lowest(layer - 1, head) : 0;
    if (lowest.has_value() && (*lowest == layer || (layer > 0 && *lowest == below))) {
      groups->lowest.push_back(*lowest);
      return absl::OkStatus();
    }
    const std::string allowed =
        layer > 0 ? fmt::format("{} (a group with the layer below) or {}", below, layer) : "0";
    return Fail(fmt::format("lowest[{}][{}] must be {}, not {}", layer, head, allowed, Show(json)));
  }

  absl::Status ReadOrigin(const Json& json, PodOrigin* origin) const {
    if (const auto model = json.find("model"); model != json.end()) {
      if (!model->is_string()) {
        return Fail(fmt::format("model must be a string, not {}", Show(*model)));
      }
      origin->model = model->get<std::string>();
    }
    if (const auto delta = json.find("delta"); delta != json.end()) {
      if (!delta->is_number() || !(delta->get<double>() >= 0 && delta->get<double>() <= 1)) {
        return Fail(fmt::format("delta must be a number from 0 to 1, not {}", Show(*delta)));
      }
      origin->delta = delta->get<double>();
    }
    for (const auto& [field, value] :
         {std::pair{"q", &origin->q}, std::pair{"samples", &origin->samples}}) {
      const auto found = json.find(field);
      if (found == json.end()) continue;
      *value = ReadInteger(*found, 1, std::numeric_limits<int>::max());
      if (!value->has_value()) {
        return Fail(
            fmt::format("{} must be an integer of at least 1, not {}", field, Show(*found)));
      }
    }
    return absl::OkStatus();
  }

  std::string_view name_;
};

std::string FormatOrigin(const PodOrigin& origin) {
  std::string text;
  if (!origin.model.empty()) {
    text += fmt::format(
        "  \"model\": {},\n",
        Json(origin.model).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
  }
  if (origin.delta) text += fmt::format("  \"delta\": {},\n", *origin.delta);
  if (origin.q) text += fmt::format("  \"q\": {},\n", *origin.q);
  if (origin.samples) text += fmt::format("  \"samples\": {},\n", *origin.samples);
  return text;
}

}  // namespace

std::optional<int> PodGroups::Followed(int layer) const {
  for (int head = 0; head < num_kv_heads; ++head) {
    if (Lowest(layer, head) != layer) return Lowest(layer, head);
  }
  return std::nullopt;
}

bool PodGroups::IsSameForAllHeads() const {
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int head = 1; head < num_kv_heads; ++head) {
      if (Lowest(layer, head) != Lowest(layer, 0)) return false;
    }
  }
  return true;
}

absl::Status CheckPodGroupsName(std::string_view name) {
  const auto may_be = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  };
  if (!name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), may_be)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "the name of pod groups must be 1 to 64 letters, digits and characters of \"_-.\"");
}

absl::StatusOr<std::shared_ptr<const PodGroups>> ParsePodGroups(std::string_view name,
                                                                std::string_view json) {
  return Reader(name).Read(json);
}

std::string FormatPodGroups(const PodGroups& groups) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"version\": {},\n{}  \"num_layers\": {},\n"
      "  \"num_kv_heads\": {},\n  \"lowest\": [\n",
      kFormat, kVersion, FormatOrigin(groups.origin), groups.num_layers, groups.num_kv_heads);
  for (int layer = 0; layer < groups.num_layers; ++layer) {
    const auto row = groups.lowest.begin() + ptrdiff_t{layer} * groups.num_kv_heads;
    text += fmt::format("    [{}]{}\n", fmt::join(row, row + groups.num_kv_heads, ", "),
                        layer + 1 < groups.num_layers ? "," : "");
  }
  return text + "  ]\n}\n";
}

}  // namespace ziggurat

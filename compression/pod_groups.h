// PoD's calibration: which layers share keys, head by head (arXiv:2412.02252).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

/// What a calibration says about itself, for those who read its file. All of it may be absent.
struct PodOrigin {
  std::string model;            ///< name of the model's folder
  std::optional<double> delta;  ///< least similarity within a group
  std::optional<int> q;         ///< last tokens of each sample, whose attention was compared
  std::optional<int> samples;
};

/// Consecutive layers whose attention is alike form a group; a token that is far away keeps its
/// keys in the group's lowest layer alone. Immutable, shared between requests.
struct PodGroups {
  std::string name;  ///< under which it was loaded
  int num_layers = 0;
  int num_kv_heads = 0;
  /// [num_layers, num_kv_heads] the lowest layer of the group: lowest <= layer, and equal for all
  /// layers of a group.
  std::vector<int> lowest;
  PodOrigin origin;

  int Lowest(int layer, int kv_head) const { return lowest[layer * num_kv_heads + kv_head]; }
  /// Whether the layer holds distant keys that a layer above it attends with.
  bool IsShared(int layer, int kv_head) const {
    return layer + 1 < num_layers && Lowest(layer, kv_head) == layer &&
           Lowest(layer + 1, kv_head) == layer;
  }
  /// The lowest layer of the group of the first head in which that is another layer; nullopt where
  /// there is none.
  std::optional<int> Followed(int layer) const;
  /// Whether each layer has one lowest layer for all its heads.
  bool IsSameForAllHeads() const;
};

/// INVALID_ARGUMENT unless policy texts can name groups so: 1 to 64 letters, digits, '_', '-', '.'.
absl::Status CheckPodGroupsName(std::string_view name);

/// Reads a groups file (docs/pod_calibration.md). INVALID_ARGUMENT names what is wrong
/// and what is allowed.
absl::StatusOr<std::shared_ptr<const PodGroups>> ParsePodGroups(std::string_view name,
                                                                std::string_view json);
/// The text of a groups file.
std::string FormatPodGroups(const PodGroups& groups);

}  // namespace ziggurat

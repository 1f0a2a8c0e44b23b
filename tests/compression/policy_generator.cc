#include "tests/compression/policy_generator.h"

#include <rapidcheck.h>

#include <algorithm>
#include <map>

namespace ziggurat {
namespace {

constexpr int64_t kSmallNumber = 3000;

std::string DrawNumber(const ParameterSpec& parameter) {
  const auto low = static_cast<int64_t>(parameter.minimum);
  const auto high = static_cast<int64_t>(parameter.maximum);
  const int64_t near = std::min(high, low + kSmallNumber);
  const bool small = *rc::gen::inRange(0, 8) > 0;
  int64_t value = *rc::gen::inRange<int64_t>(low, (small ? near : high) + 1);
  if (parameter.odd && value % 2 == 0) ++value;
  std::string text = std::to_string(value);
  if (parameter.type == ParameterType::kReal && value < high) {
    text.append(".").append(std::to_string(*rc::gen::inRange(0, 1000000)));
  }
  return text;
}

}  // namespace

PolicyResources DrawResources(int num_layers, int num_kv_heads) {
  auto groups = std::make_shared<PodGroups>();
  groups->name = "calibration";
  groups->num_layers = num_layers;
  groups->num_kv_heads = num_kv_heads;
  groups->lowest.resize(static_cast<size_t>(num_layers) * num_kv_heads);
  const bool same_for_all_heads = *rc::gen::arbitrary<bool>();
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int head = 0; head < num_kv_heads; ++head) {
      int& lowest = groups->lowest[layer * num_kv_heads + head];
      if (head > 0 && same_for_all_heads) {
        lowest = groups->Lowest(layer, 0);
      } else if (layer == 0 || *rc::gen::inRange(0, 3) == 0) {
        lowest = layer;
      } else {
        lowest = groups->Lowest(layer - 1, head);
      }
    }
  }
  PolicyResources resources;
  resources.pod_groups.push_back(std::move(groups));
  return resources;
}

std::string DrawPolicyText(const PolicyDescriptor& policy) {
  // Choices first: other parameters may depend on them.
  std::map<std::string_view, size_t> choices;
  std::map<std::string_view, std::string> values;
  for (const ParameterSpec& parameter : policy.parameters) {
    if (parameter.type != ParameterType::kChoice) continue;
    const size_t index = *rc::gen::inRange<size_t>(0, parameter.choices.size());
    choices[parameter.name] = index;
    values[parameter.name] = std::string(parameter.choices[index]);
  }
  for (const ParameterSpec& parameter : policy.parameters) {
    if (parameter.type == ParameterType::kChoice) continue;
    if (!parameter.is_required() && *rc::gen::arbitrary<bool>()) continue;
    if (parameter.only_with.has_value() &&
        choices.at(parameter.only_with->parameter) != parameter.only_with->choice) {
      continue;
    }
    if (parameter.type == ParameterType::kPodGroups) {
      values[parameter.name] = "calibration";
    } else if (!parameter.word.empty() && *rc::gen::inRange(0, 4) == 0) {
      values[parameter.name] = std::string(parameter.word);
    } else {
      values[parameter.name] = DrawNumber(parameter);
    }
  }
  std::string text(policy.name);
  const char* separator = "(";
  for (const auto& [name, value] : values) {
    text.append(separator).append(name).append("=").append(value);
    separator = ",";
  }
  return values.empty() ? text : text.append(")");
}

std::shared_ptr<const Policy> DrawPolicy(const PolicyResources& resources) {
  const auto draw = [] {
    return DrawPolicyText(**rc::gen::elementOf(
        std::vector<const PolicyDescriptor*>(AllPolicies().begin(), AllPolicies().end())));
  };
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto policy = ParsePolicy(draw(), resources);
    if (!policy.ok()) continue;
    // More terms as long as they compose.
    for (int more = *rc::gen::inRange(0, 8); more > 0; --more) {
      auto composed = ParsePolicy((*policy)->ToString() + "+" + draw(), resources);
      if (composed.ok()) policy = std::move(composed);
    }
    return *policy;
  }
  RC_DISCARD("no valid policy in a hundred");
}

}  // namespace ziggurat

// MiniCache (arXiv:2405.14366): pairs of neighbouring layers of the upper half store one direction
// for each token, and the norms of both.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "compression/policy_descriptor.h"

namespace ziggurat {
namespace {

constexpr std::string_view kRetainChoices[] = {"count", "threshold"};

class MiniCache final : public DescribedPolicy {
 public:
  explicit MiniCache(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        start_(arguments.IntegerOrWord("start")),
        options_{.t = arguments.Real("t"),
                 .retain = arguments.Real("retain"),
                 .by_threshold = arguments.Choice("retain_by") == 1,
                 .tail = static_cast<int>(arguments.Integer("tail"))} {}

  PolicyTraits traits() const override { return kMergesLayers; }

  absl::Status Check(const PolicyContext& context) const override {
    // By default it starts in the middle, whatever there is to pair behind it.
    const int64_t start = Start(context.num_layers);
    if (!start_.has_value() || start + 1 < context.num_layers) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("minicache: start={} leaves no pair of layers to merge in a model of {}: {}",
                    start, context.num_layers,
                    context.num_layers < 2
                        ? "it takes two"
                        : fmt::format("must be half, or at most {}", context.num_layers - 2)));
  }

  void Apply(const PolicyContext& context, const SequenceLimits& /*limits*/,
             CachePlan* plan) const override {
    for (int64_t layer = Start(context.num_layers); layer + 1 < context.num_layers; layer += 2) {
      plan->layers[layer].merge = MergeRole::kLower;
      plan->layers[layer + 1].merge = MergeRole::kUpper;
      plan->merge = options_;
    }
  }

 private:
  int64_t Start(int num_layers) const { return start_.value_or(num_layers / 2); }

  std::optional<int64_t> start_;  // absent: half of the layers
  MergeOptions options_;
};

constexpr ParameterSpec kParameters[] = {
    {.name = "start",
     .help = "the first layer that is paired with the one above; half: the middle of the model",
     .is_amount = true,
     .minimum = 0,
     .maximum = 4096,
     .word = "half"},
    {.name = "t",
     .help = "weight of the upper layer in the direction that both store",
     .type = ParameterType::kReal,
     .minimum = 0,
     .maximum = 1,
     .default_value = 0.6},
    {.name = "retain",
     .help = "share of the tokens that stay as they are in both layers",
     .type = ParameterType::kReal,
     .is_amount = true,
     .minimum = 0,
     .maximum = 1,
     .default_value = 0.05},
    {.name = "tail",
     .help = "generated tokens that wait before they are merged",
     .minimum = 1,
     .maximum = MergeOptions::kLongestTail,
     .default_value = 128},
    {.name = "retain_by",
     .help = "which stay: that share of the tokens by count, or those whose angle is within that "
             "share of the range below the largest",
     .type = ParameterType::kChoice,
     .choices = kRetainChoices,
     .default_value = 0},
};

}  // namespace

const PolicyDescriptor& MinicachePolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "minicache",
      .summary = "stores one direction for every two layers of the upper half, and both norms",
      .paper = "2405.14366",
      .parameters = kParameters,
      .make = MakePolicy<MiniCache>,
  };
  return kDescriptor;
}

}  // namespace ziggurat

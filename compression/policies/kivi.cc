// KIVI (arXiv:2402.02750): keys quantized per channel over groups of tokens, values per token over
// groups of channels, the newest tokens as they are.
#include <memory>

#include "compression/quantizing_policy.h"

namespace ziggurat {
namespace {

constexpr std::string_view kBitsChoices[] = {"4", "2"};

constexpr ParameterSpec kParameters[] = {
    {.name = "bits",
     .help = "of a code",
     .type = ParameterType::kChoice,
     .is_amount = true,
     .choices = kBitsChoices,
     .default_value = 0},
    {.name = "group",
     .help = "tokens that share the scale of a key's channel, and channels that share that of a "
             "value; must divide the head size",
     .minimum = 2,
     .maximum = 256,
     .default_value = 32},
    {.name = "residual",
     .help = "newest tokens that stay as they are; a group becomes codes once it is older",
     .minimum = 0,
     .maximum = 4096,
     .default_value = 32},
};

}  // namespace

const PolicyDescriptor& KiviPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "kivi",
      .summary = "stores keys and values in 4 or 2 bits, keys per channel, values per token",
      .paper = "2402.02750",
      .parameters = kParameters,
      .make = [](const PolicyArguments& arguments) -> std::shared_ptr<const DescribedPolicy> {
        return std::make_shared<QuantizingPolicy>(
            arguments,
            Quantization{.kind = arguments.Choice("bits") == 0 ? Quantization::Kind::kInt4
                                                               : Quantization::Kind::kInt2,
                         .group = static_cast<int>(arguments.Integer("group")),
                         .residual = static_cast<int>(arguments.Integer("residual"))});
      },
  };
  return kDescriptor;
}

}  // namespace ziggurat

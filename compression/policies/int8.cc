// Keys and values in 8 bits, symmetric, with a scale per token and head.
#include <memory>

#include "compression/quantizing_policy.h"

namespace ziggurat {

const PolicyDescriptor& Int8Policy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "int8",
      .summary = "stores keys and values as 8-bit integers, one scale per token and head",
      .make = [](const PolicyArguments& arguments) -> std::shared_ptr<const DescribedPolicy> {
        return std::make_shared<QuantizingPolicy>(arguments,
                                                  Quantization{.kind = Quantization::Kind::kInt8});
      },
  };
  return kDescriptor;
}

}  // namespace ziggurat

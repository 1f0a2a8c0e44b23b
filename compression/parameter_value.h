// From the text of one parameter to its value.
#pragma once

#include <optional>
#include <string_view>

#include "compression/policy_descriptor.h"

namespace ziggurat {

/// The value that `text` gives to the parameter; nullopt where it is none that the parameter takes.
std::optional<PolicyArguments::Value> ReadParameter(const ParameterSpec& parameter,
                                                    std::string_view text,
                                                    const PolicyResources& resources);

/// The value where none is given. Not of a required parameter.
PolicyArguments::Value DefaultOf(const ParameterSpec& parameter);

}  // namespace ziggurat

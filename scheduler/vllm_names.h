// The daemon's metrics under the names that vLLM gives them, for dashboards and for endpoint
// pickers that know only those.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace ziggurat {

/// Appends to `families`, which hold the metrics of scheduler/metrics.cc, the same values under
/// vLLM's names, each with the label model_name. Ours have a block for every layer where vLLM has
/// one for all, so that its number of blocks is ours over the layers. Pure; what is missing in
/// `families` is left out.
void AddVllmNames(const std::string& model_name, std::vector<prometheus::MetricFamily>* families);

}  // namespace ziggurat

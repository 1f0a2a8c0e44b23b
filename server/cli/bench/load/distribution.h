// Many values in a few figures.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace ziggurat::bench {

/// NaN where there are no values.
struct Distribution {
  size_t count = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();
  double p50 = std::numeric_limits<double>::quiet_NaN();
  double p95 = std::numeric_limits<double>::quiet_NaN();
  double p99 = std::numeric_limits<double>::quiet_NaN();
  double max = std::numeric_limits<double>::quiet_NaN();
};

Distribution Describe(std::vector<double> values);

/// Of values in ascending order, which `percent` of them are no more than; between two ranks it is
/// interpolated linearly, as NumPy does. NaN of nothing.
double Percentile(const std::vector<double>& ascending, double percent);

}  // namespace ziggurat::bench

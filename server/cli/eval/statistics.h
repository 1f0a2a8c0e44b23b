// The statistics of the report.
#pragma once

#include <cstdint>
#include <vector>

namespace ziggurat::eval {

struct Interval {
  double low = 0;
  double high = 1;
};

/// Wilson's score interval of a proportion, 95 %. [0, 1] for no trials.
Interval WilsonInterval(int64_t successes, int64_t trials);

/// McNemar's exact test, two-sided: the probability, if both of a pair are equally good, that of
/// `lost + won` differing pairs the split is at least as uneven as this. 1 where none differs.
double McNemarExactP(int64_t lost, int64_t won);

/// NaN of nothing; of an even number, the mean of the two in the middle.
double Median(std::vector<double> values);

}  // namespace ziggurat::eval

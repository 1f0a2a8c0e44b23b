// Products of every implementation against sums in double, over odd sizes and numbers of rows.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/decoder/linear.h"

namespace ziggurat::testing {

struct LinearCase {
  ElementType element;
  bool has_bias;
  int in, out;
};

std::vector<LinearCase> LinearCases(ElementType element);
std::string LinearCaseName(const ::testing::TestParamInfo<LinearCase>& info);

/// Run() and Accumulate() of what `factory` makes of random weights.
///   packs   whether it has the weights in memory of its own, as PacksWeights() says
void CheckProducts(LinearFactory& factory, const LinearCase& of, bool packs);

}  // namespace ziggurat::testing

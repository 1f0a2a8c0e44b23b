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
///   tolerance   of f32 results, relative to the largest
void CheckProducts(LinearFactory& factory, const LinearCase& of, double tolerance);

}  // namespace ziggurat::testing

// Runs the twin tests on a GPU; where there is none, says so and ends with 77, which ctest knows as
// a test that was skipped.

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/attention/cuda/device_memory.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const std::string why = ziggurat::cuda::WhyNoDevice(); !why.empty()) {
    std::printf("SKIP: %s; the emulator runs these tests without one (cuda_emulated_test)\n",
                why.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}

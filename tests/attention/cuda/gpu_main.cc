// Runs the twin tests on a GPU; where there is none, says so and ends with 77, which ctest knows as
// a test that was skipped.

#include <cstdio>

#include "attention/cuda/device.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const auto device = ziggurat::cuda::OpenDevice(0); !device.ok()) {
    std::printf("SKIP: %s; the emulator runs these tests without one (cuda_emulated_test)\n",
                std::string(device.status().message()).c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}

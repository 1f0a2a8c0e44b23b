// The prefill peak: with layer-major prefill the uncompressed cache of all layers never exists, so
// the process grows by the workspace and the compressed cache, and by nothing else.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "model/checkpoint/random_model.h"
#include "tests/model/decoder_harness.h"
#include "tests/support/files.h"

namespace ziggurat::testing {
namespace {

/// A line of /proc/self/status, in bytes.
size_t StatusBytes(std::string_view key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) == 0)
      return std::stoul(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

/// Sets VmHWM, the most that was ever resident, to what is resident now.
bool ResetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && StatusBytes("VmHWM") <= StatusBytes("VmRSS") + (size_t{1} << 20);
}

class PrefillMemory : public ::testing::TestWithParam<int> {};

TEST_P(PrefillMemory, GrowsByWorkspaceAndCompressedCacheOnly) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "skipped: the sanitizer's shadow memory is resident too";
#endif
  constexpr int kTokens = 4000;
  const TemporaryFolder folder;
  const std::filesystem::path dir = folder / "model";
  RandomModelOptions model;
  model.layers = GetParam();
  model.hidden_size = 256;
  model.q_heads = 8;
  model.kv_heads = 4;
  model.intermediate_size = 704;
  model.vocab_size = 512;
  model.context_tokens = 4096;
  ASSERT_TRUE(WriteRandomModel(model, dir).ok());
  DecoderHarness harness(
      dir, {.element = ElementType::kBf16, .threads = 2, .max_prefill_tokens = kTokens},
      MakeBestBackend(2));

  std::mt19937 random(1);
  std::vector<int32_t> prompt(kTokens);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 512);
  TestSequence sequence = harness.NewSequence("pyramidkv(budget=128)", kTokens, 32);
  if (!ResetPeak()) GTEST_SKIP() << "skipped: /proc/self/clear_refs cannot be written here";
  const size_t idle = StatusBytes("VmRSS");
  harness.Prefill({&sequence}, {prompt});
  const size_t grown = StatusBytes("VmHWM") - idle;

  const size_t pool = harness.pool().high_water_blocks() * harness.pool().block_bytes();
  const size_t workspace = harness.runner().workspace_high_water_bytes();
  std::printf("%d layers: grew by %zu bytes; pool %zu + workspace %zu = %zu\n", GetParam(), grown,
              pool, workspace, pool + workspace);
  EXPECT_EQ(workspace, harness.runner().WorkspaceBytes(kTokens) +
                           harness.runner().PromptNeedsBytes(kTokens, sequence.needs()));
  EXPECT_EQ(pool, sequence.store->cache().blocks() * harness.pool().block_bytes())
      << "no block was allocated only to be freed";
  EXPECT_LE(grown, (pool + workspace) * 11 / 10);
  EXPECT_GE(grown, workspace / 2) << "the measurement sees nothing";
}

INSTANTIATE_TEST_SUITE_P(Layers, PrefillMemory, ::testing::Values(8, 32));

}  // namespace
}  // namespace ziggurat::testing

// The memory of a long prompt's prefill, in three numbers: the pool's, the workspace's, the
// process's. With more layers only the first may grow: the uncompressed cache never exists.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cache_arithmetic.h"
#include "tests/e2e/process_memory.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kPromptTokens = 4000;
constexpr int kWindow = 8;
constexpr int kElementBytes = 2;
constexpr int kSlotsPerBlock = 16;
// Wide enough that the workspace is tens of MiB, shallow enough in the MLP to be quick.
constexpr int kHidden = 1024;
constexpr int kQueryHeads = 16;
constexpr int kKvHeads = 4;
constexpr int kHeadDim = 64;
constexpr int kMlp = 512;
constexpr size_t kBlockBytes = size_t{64} * kKvHeads * kHeadDim;

/// docs/architecture.md, "Memory of prefill": the hidden states of the batch, one layer's queries,
/// keys and values, what the statistics need, and the activations of one chunk of tokens. Each part
/// begins at a multiple of 64 bytes.
size_t WorkspaceFormula(size_t n, size_t w) {
  constexpr size_t kChunk = 256;
  const size_t c = std::min(n, kChunk);
  const size_t q_width = size_t{kQueryHeads} * kHeadDim;
  const size_t kv_width = size_t{kKvHeads} * kHeadDim;
  const size_t parts[] = {
      n * kHidden * 4,                                                         // hidden states, f32
      n * q_width * kElementBytes,                                             // queries
      n * kv_width * kElementBytes,                                            // keys
      n * kv_width * kElementBytes,                                            // values
      n * kQueryHeads * 4,                                                     // log-sum-exp
      n * (kHeadDim / 2) * 4,                                                  // cosines
      n * (kHeadDim / 2) * 4,                                                  // sines
      w * q_width * kElementBytes,                                             // window queries
      n * kKvHeads * 4,                                                        // scores
      n * kKvHeads * 4,                                                        // selection
      c * kHidden * kElementBytes,                                             // normed
      c * std::max(q_width + 2 * kv_width, size_t{2} * kMlp) * kElementBytes,  // projections
      c * kMlp * kElementBytes,                                                // gated
      c * kHidden * 4,  // hidden states before attention
  };
  size_t bytes = 0;
  for (const size_t part : parts) bytes += (part + 63) / 64 * 64;
  return bytes;
}

struct Peak {
  size_t pool_bytes = 0;
  size_t workspace_bytes = 0;
  size_t resident_bytes = 0;  ///< above idle
};

/// Resident memory once it has stopped moving after the start.
size_t IdleBytes(pid_t pid) {
  size_t idle = ResidentBytes(pid);
  int calm = 0;
  PollUntil(absl::Seconds(10), [&] {
    absl::SleepFor(absl::Milliseconds(20));
    const size_t now = ResidentBytes(pid);
    calm = now == idle ? calm + 1 : 0;
    idle = now;
    return calm >= 10;
  });
  return idle;
}

void MeasurePeak(int layers, Peak* peak) {
  TemporaryFolder folder;
  const CommandResult made = RunZiggurat(
      {"make-model", "--out", folder / "model", "--layers", std::to_string(layers), "--hidden-size",
       std::to_string(kHidden), "--heads", std::to_string(kQueryHeads), "--kv-heads",
       std::to_string(kKvHeads), "--head-dim", std::to_string(kHeadDim), "--intermediate-size",
       std::to_string(kMlp), "--vocab-size", "1024", "--context", "4096"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  START_DAEMON(daemon, {.model = folder / "model",
                        .dtype = "bf16",
                        .kv_cache_memory = "512MiB",
                        .ready_timeout = absl::Seconds(300)});
  if (daemon.is_sanitized()) GTEST_SKIP() << "memory under a sanitizer says nothing";
  const std::vector<int32_t> words = daemon.Tokenize(PlainEnglish(5, 2000));
  ASSERT_GE(words.size(), static_cast<size_t>(kPromptTokens));
  ASSERT_EQ(daemon.HttpGet("/healthz").first, 200);
  daemon.Metrics();
  const size_t idle = IdleBytes(daemon.pid());

  v1::GenerateRequest request =
      IdRequest(absl::MakeConstSpan(words).first(kPromptTokens), 1, AtEos::kGoOn);
  request.set_compression(absl::StrCat("pyramidkv(budget=128,window=", kWindow, ")"));
  ResetPeakResident(daemon.pid());
  const Generation generation = Generate(daemon, request, {.deadline = absl::Minutes(5)});
  const size_t most = PeakResidentBytes(daemon.pid());
  ASSERT_TRUE(generation.ok()) << generation.Describe();

  const v1::GetCacheResponse cache = WaitUntilEmpty(daemon);
  const std::vector<int> budgets = PyramidBudgets(128, kWindow, 20, layers, kPromptTokens);
  peak->pool_bytes = cache.high_water_blocks() * cache.block_bytes();
  peak->workspace_bytes = cache.workspace_high_water_bytes();
  peak->resident_bytes = most > idle ? most - idle : 0;
  const double full_bytes =
      static_cast<double>(layers) * kPromptTokens * 2 * kKvHeads * kHeadDim * kElementBytes;
  std::printf(
      "%2d layers: pool %.2f MiB (uncompressed it would be %.0f), workspace %.2f MiB, "
      "resident %.2f MiB above idle (%.1f MiB): %.3f of the sum\n",
      layers, peak->pool_bytes / 1048576.0, full_bytes / 1048576.0,
      peak->workspace_bytes / 1048576.0, peak->resident_bytes / 1048576.0, idle / 1048576.0,
      peak->resident_bytes / static_cast<double>(peak->pool_bytes + peak->workspace_bytes));

  EXPECT_EQ(cache.block_bytes(), kBlockBytes);
  // The compressed cache and nothing else: this policy's edit needs no transient block.
  EXPECT_EQ(cache.high_water_blocks(),
            static_cast<uint64_t>(TotalBlocks(budgets, 0, kSlotsPerBlock)));
  EXPECT_EQ(cache.workspace_high_water_bytes(), WorkspaceFormula(kPromptTokens, kWindow));
  EXPECT_LE(peak->resident_bytes, 1.1 * (peak->pool_bytes + peak->workspace_bytes));
}

TEST(PrefillPeak, OnlyTheCompressedCacheGrowsWithTheLayers) {
  Peak shallow;
  Peak deep;
  ASSERT_NO_FATAL_FAILURE(MeasurePeak(8, &shallow));
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(MeasurePeak(32, &deep));
  EXPECT_EQ(shallow.workspace_bytes, deep.workspace_bytes);
  EXPECT_NEAR(deep.pool_bytes / static_cast<double>(shallow.pool_bytes), 4.0, 0.2);
  // What the process gained with the layers is what the pool gained, and a tenth of everything for
  // allocators and stacks.
  const double gained = static_cast<double>(deep.resident_bytes) - shallow.resident_bytes;
  const double pool_gained = static_cast<double>(deep.pool_bytes) - shallow.pool_bytes;
  EXPECT_LE(gained, pool_gained + 0.1 * (deep.pool_bytes + deep.workspace_bytes));
}

}  // namespace
}  // namespace ziggurat::e2e

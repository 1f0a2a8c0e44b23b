// Decode attention against the read bandwidth of the machine, and prefill attention in FLOP/s.
//
// The caches of one measurement (sequences of 8,192 tokens each) are a gigabyte and more, far more
// than any last level cache, as they are when a daemon decodes: every step reads them once. The
// read bandwidth is measured on the same memory in the same run.
//
//   kernels_bench [--threads=N] [--gigabytes=N] [google-benchmark's own flags]

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/bfloat16.h"
#include "bench/kernels/read_bandwidth.h"

namespace ziggurat {
namespace {

constexpr int kTokens = 8192;

/// The memory that all caches of this run lie in, and what reading it costs.
struct Machine {
  std::byte* slab = nullptr;
  size_t bytes = 0;
  int threads = 2;
  double read_bandwidth = 0;
};
Machine machine;

void MapSlab(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  machine.slab = static_cast<std::byte*>(memory);
  machine.bytes = bytes;
  // Small random numbers, valid as bf16 and as f32 alike: the upper half of each pair decides.
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> tile(1 << 20);
  for (uint16_t& x : tile) x = FloatToBf16(normal(random));
  for (size_t i = 0; i < bytes; i += tile.size() * 2) {
    std::memcpy(machine.slab + i, tile.data(), std::min(tile.size() * 2, bytes - i));
  }
}

std::unique_ptr<AttentionBackend> BestBackend() {
  return *MakeCpuBackend(*DetectCpuLevel(), machine.threads);
}

/// Sequences of kTokens tokens over shuffled blocks of the whole slab.
struct Caches {
  Caches(ElementType element, const AttentionShape& shape) {
    const size_t block_bytes = CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim);
    const size_t token_bytes = 2 * shape.num_kv_heads * shape.head_dim * ElementBytes(element);
    const uint32_t slots = static_cast<uint32_t>(block_bytes / token_bytes);
    const size_t area = slots * shape.head_dim * ElementBytes(element);
    pool = {machine.slab, block_bytes};
    blocks.resize(machine.bytes / block_bytes);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(2));
    const size_t per_sequence = kTokens / slots;
    for (size_t first = 0; first + per_sequence <= blocks.size(); first += per_sequence) {
      SegmentView segment;
      segment.element = element;
      segment.num_kv_heads = shape.num_kv_heads;
      segment.num_slots = kTokens;
      segment.keys = {blocks.data() + first, slots, static_cast<uint32_t>(2 * area), 0};
      segment.values = {blocks.data() + first, slots, static_cast<uint32_t>(2 * area),
                        static_cast<uint32_t>(area)};
      segments.push_back(segment);
    }
    for (const SegmentView& segment : segments) items.push_back({LayerView(&segment, 1)});
    bytes = items.size() * kTokens * token_bytes;
  }
  PoolView pool;
  std::vector<BlockId> blocks;
  std::vector<SegmentView> segments;
  std::vector<DecodeItem> items;
  size_t bytes;  ///< of keys and values, read once per step
};

void BM_DecodeAttention(benchmark::State& state, ElementType element, int group, int head_dim) {
  constexpr int kKvHeads = 8;
  const AttentionShape shape = {group * kKvHeads, kKvHeads, head_dim,
                                1 / std::sqrt(static_cast<float>(head_dim))};
  const Caches caches(element, shape);
  const auto backend = BestBackend();
  std::vector<float> q(caches.items.size() * shape.num_q_heads * head_dim), out(q.size());
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  for (float& x : q) x = normal(random);
  double best = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    backend->DecodeAttention(shape, caches.items, q.data(), caches.pool, out.data(), nullptr);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::max(best, static_cast<double>(caches.bytes) / seconds);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetLabel(std::string(backend->name()));
  state.counters["GB/s"] = best / 1e9;
  state.counters["percent_of_read"] = 100 * best / machine.read_bandwidth;
}

void BM_PrefillAttention(benchmark::State& state, ElementType element, int head_dim, int tokens) {
  constexpr int kKvHeads = 4, kGroup = 4;
  const AttentionShape shape = {kGroup * kKvHeads, kKvHeads, head_dim,
                                1 / std::sqrt(static_cast<float>(head_dim))};
  const auto backend = BestBackend();
  const size_t q_bytes = size_t{1} * tokens * shape.num_q_heads * head_dim * ElementBytes(element);
  const size_t kv_bytes = q_bytes / kGroup;
  std::vector<std::byte> out(q_bytes);
  std::vector<float> lse(static_cast<size_t>(tokens) * shape.num_q_heads);
  const int offsets[] = {0, tokens};
  const std::byte* q = machine.slab;
  double best_seconds = INFINITY;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    backend->PrefillAttention(shape, {offsets}, element, q, q + q_bytes, q + q_bytes + kv_bytes,
                              out.data(), lse.data());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best_seconds = std::min(best_seconds, seconds);
  }
  // Two multiply-adds for each channel of each pair of a query and a key it may see.
  const double pairs = 0.5 * tokens * (tokens + 1.0) * shape.num_q_heads;
  state.SetLabel(std::string(backend->name()));
  state.counters["GFLOP/s"] = 4 * pairs * head_dim / best_seconds / 1e9;
}

void RegisterAll() {
  for (ElementType element : {ElementType::kBf16, ElementType::kF32}) {
    const std::string name = element == ElementType::kF32 ? "f32" : "bf16";
    for (int head_dim : {64, 128}) {
      for (int group : {1, 4, 8}) {
        benchmark::RegisterBenchmark(
            ("decode/" + name + "/D:" + std::to_string(head_dim) +
             "/group:" + std::to_string(group))
                .c_str(),
            [=](benchmark::State& state) { BM_DecodeAttention(state, element, group, head_dim); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(5);
      }
      benchmark::RegisterBenchmark(
          ("prefill/" + name + "/D:" + std::to_string(head_dim) + "/tokens:2048").c_str(),
          [=](benchmark::State& state) { BM_PrefillAttention(state, element, head_dim, 2048); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(3);
    }
  }
}

}  // namespace
}  // namespace ziggurat

int main(int argc, char** argv) {
  using ziggurat::machine;
  double gigabytes = 2;
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::sscanf(argv[i], "--threads=%d", &machine.threads) == 1) continue;
    if (std::sscanf(argv[i], "--gigabytes=%lf", &gigabytes) == 1) continue;
    std::fprintf(stderr, "unknown flag %s\n", argv[i]);
    return 1;
  }
  if (machine.threads < 1 || !(gigabytes >= 0.25 && gigabytes <= 256)) {
    std::fprintf(stderr, "--threads must be at least 1, --gigabytes in [0.25, 256]\n");
    return 1;
  }
  if (!ziggurat::DetectCpuLevel().ok()) {
    std::fprintf(stderr, "%s\n", ziggurat::DetectCpuLevel().status().ToString().c_str());
    return 1;
  }
  ziggurat::MapSlab(static_cast<size_t>(gigabytes * (size_t{1} << 30)));
  machine.read_bandwidth =
      ziggurat::MeasureReadBandwidth(machine.slab, machine.bytes, machine.threads, 3);
  std::printf("read bandwidth: %.1f GB/s with %d threads over %.2f GiB\n",
              machine.read_bandwidth / 1e9, machine.threads, gigabytes);
  ziggurat::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

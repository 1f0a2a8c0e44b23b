#include "bench/kernels/kernels_bench.h"

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/bfloat16.h"
#include "bench/kernels/gemm_bench.h"
#include "bench/kernels/read_bandwidth.h"
#include "bench/kernels/sampling_bench.h"
#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat {
namespace {

/// The memory that all caches of this run lie in, and what reading it costs.
struct Machine {
  std::byte* slab = nullptr;
  size_t bytes = 0;
  int threads = 2;
  bool in_cache = false;
  double read_bandwidth = 0;
  CpuLevel level = CpuLevel::kAvx2;

  int tokens() const { return in_cache ? 256 : 8192; }  ///< of a sequence whose cache is read
  /// Of one measurement of decode attention.
  int repeats() const { return in_cache ? 1000 : 5; }
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
  return *MakeCpuBackend(machine.level, machine.threads);
}

/// Stops where a call that only fails for our own mistakes did.
void MustBeOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

/// Sequences of so many tokens over shuffled blocks of the whole slab: as many as fit in
/// bf16, or in a wider format.
struct Caches {
  Caches(const CacheFormat& format, const AttentionShape& shape)
      : geometry{1, shape.num_kv_heads, shape.head_dim,
                 CacheGeometry::DefaultBlockBytes(shape.num_kv_heads, shape.head_dim)},
        pool{machine.slab, geometry.block_bytes} {
    MustBeOk(geometry.CheckFormat(format));
    // Numbers blocks alone: its own memory is never touched.
    ids = *BlockPool::Create(machine.bytes / geometry.block_bytes, geometry.block_bytes);
    std::vector<BlockId> blocks(ids->num_blocks());
    MustBeOk(ids->Allocate(absl::MakeSpan(blocks)));
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(2));
    ids->Release(blocks);
    const int heads = shape.num_kv_heads;
    const size_t widest = std::max(geometry.BlocksFor(CacheFormat::kBf16, heads, machine.tokens()),
                                   geometry.BlocksFor(format, heads, machine.tokens()));
    size_t sequences = ids->num_blocks() / widest;
    if (machine.in_cache) sequences = std::min<size_t>(sequences, machine.threads);
    if (sequences == 0) MustBeOk(absl::InternalError("not one sequence fits"));
    for (size_t i = 0; i < sequences; ++i) {
      tables.push_back(std::make_unique<LayerBlockTable>(ids.get(), &geometry));
      tables.back()->AddSegment({format});
      MustBeOk(tables.back()->Extend(0, machine.tokens()));
      items.push_back({tables.back()->view()});
    }
    const PlaneList planes = PlanesOf(format, heads, shape.head_dim);
    for (int p = 0; p < planes.count; ++p) {
      // Of the norms of two layers, one layer reads its own.
      const size_t parts = planes.planes[p].role == PlaneRole::kNorms ? 2 : 1;
      bytes += sequences * planes.planes[p].LiveBytes(machine.tokens()) / parts;
    }
  }
  double tokens() const { return static_cast<double>(items.size()) * machine.tokens(); }

  CacheGeometry geometry;
  PoolView pool;
  std::unique_ptr<BlockPool> ids;
  std::vector<std::unique_ptr<LayerBlockTable>> tables;
  std::vector<DecodeItem> items;
  size_t bytes = 0;  ///< read once per step
};

/// Times each iteration of a benchmark; seconds of the best.
double BestSeconds(benchmark::State& state, const auto& call) {
  double best = INFINITY;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  return best;
}

/// Best seconds per token of a bf16 cache, by head size and group.
std::map<std::pair<int, int>, double> bf16_seconds;

void BM_DecodeAttention(benchmark::State& state, const CacheFormat& format, int group,
                        int head_dim) {
  constexpr int kKvHeads = 8;
  const AttentionShape shape = {group * kKvHeads, kKvHeads, head_dim,
                                1 / std::sqrt(static_cast<float>(head_dim)), ElementType::kBf16};
  const Caches caches(format, shape);
  const auto backend = BestBackend();
  std::vector<float> q(caches.items.size() * shape.num_q_heads * head_dim), out(q.size());
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  for (float& x : q) x = normal(random);
  const double best_seconds = BestSeconds(state, [&] {
    backend->DecodeAttention(shape, caches.items, q.data(), caches.pool, out.data(), nullptr);
  });
  const double bandwidth = static_cast<double>(caches.bytes) / best_seconds;
  const double per_token = best_seconds / caches.tokens();
  if (format == CacheFormat::kBf16) bf16_seconds[{head_dim, group}] = per_token;
  state.SetLabel(std::string(backend->name()));
  state.counters["GB/s"] = bandwidth / 1e9;
  // What a thread takes for what one KV head holds of a token.
  state.counters["ns_per_token"] = per_token * 1e9 * machine.threads / kKvHeads;
  state.counters["percent_of_read"] = 100 * bandwidth / machine.read_bandwidth;
  if (const auto base = bf16_seconds.find({head_dim, group}); base != bf16_seconds.end()) {
    state.counters["percent_of_bf16_time"] = 100 * per_token / base->second;
  }
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
  const double best_seconds = BestSeconds(state, [&] {
    backend->PrefillAttention(
        shape, {offsets},
        {element, q, q + q_bytes, q + q_bytes + kv_bytes, out.data(), lse.data()});
  });
  // Two multiply-adds for each channel of each pair of a query and a key it may see.
  const double pairs = 0.5 * tokens * (tokens + 1.0) * shape.num_q_heads;
  state.SetLabel(std::string(backend->name()));
  state.counters["GFLOP/s"] = 4 * pairs * head_dim / best_seconds / 1e9;
}

/// H2O's statistic of a prompt: column sums of all its queries.
void BM_ColumnSums(benchmark::State& state, ElementType element, int head_dim, int tokens) {
  constexpr int kKvHeads = 4, kGroup = 4;
  const AttentionShape shape = {kGroup * kKvHeads, kKvHeads, head_dim,
                                1 / std::sqrt(static_cast<float>(head_dim))};
  const auto backend = BestBackend();
  const size_t q_bytes = size_t{1} * tokens * shape.num_q_heads * head_dim * ElementBytes(element);
  const std::vector<float> lse(static_cast<size_t>(tokens) * shape.num_q_heads, 8.0f);
  std::vector<float> sums(static_cast<size_t>(tokens) * kKvHeads);
  const PromptTail tail = {element, machine.slab, lse.data(), machine.slab + q_bytes,
                           tokens,  tokens};
  const double best_seconds = BestSeconds(state, [&] {
    backend->ColumnSums(shape, tail, 0, tokens, ScoreRows::kKvHeads, sums.data(), tokens);
  });
  // One multiply-add for each channel of each pair of a query and a key it may see.
  const double pairs = 0.5 * tokens * (tokens + 1.0) * shape.num_q_heads;
  state.SetLabel(std::string(backend->name()));
  state.counters["GFLOP/s"] = 2 * pairs * head_dim / best_seconds / 1e9;
}

void Register(const std::string& name, int iterations,
              const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(iterations);
}

void RegisterAttention() {
  const CacheFormat merged = {Encoding::kBf16, 0, false, true};
  const std::pair<const char*, CacheFormat> formats[] = {
      {"bf16", CacheFormat::kBf16},
      {"f32", CacheFormat::kF32},
      {"bf16-merged", merged},
      {"int8", {Encoding::kInt8}},
      {"fp8", {Encoding::kFp8}},
      {"int4", {Encoding::kInt4, 32}},
      {"int4-merged", {Encoding::kInt4, 32, false, true}},
      {"int2", {Encoding::kInt2, 32}}};
  for (int head_dim : {64, 128}) {
    const std::string size = "/D:" + std::to_string(head_dim);
    for (int group : {1, 3, 4, 8}) {
      for (const auto& [name, format] : formats) {
        Register("decode/" + std::string(name) + size + "/group:" + std::to_string(group),
                 machine.repeats(), [=, f = format](benchmark::State& state) {
                   BM_DecodeAttention(state, f, group, head_dim);
                 });
      }
    }
    if (machine.in_cache) continue;
    for (ElementType element : {ElementType::kBf16, ElementType::kF32}) {
      const std::string name(ElementTypeName(element));
      Register("prefill/" + name + size + "/tokens:2048", 3, [=](benchmark::State& state) {
        BM_PrefillAttention(state, element, head_dim, 2048);
      });
      Register("column_sums/" + name + size + "/tokens:2048", 3,
               [=](benchmark::State& state) { BM_ColumnSums(state, element, head_dim, 2048); });
    }
  }
}

void RegisterAll(const KernelsBenchOptions& options) {
  RegisterAttention();
  if (!options.in_cache) RegisterSamplingBench();
#ifdef ZIGGURAT_HAS_ONEDNN
  // The decoder's products always use the best level.
  const auto best = DetectCpuLevel();
  if (!options.in_cache && best.ok() && *best == options.level) {
    RegisterGemmBench(machine.threads, machine.read_bandwidth);
  }
#endif
}

/// As the library will read it, which would only say that nothing matches.
absl::Status CheckRegex(const std::string& filter) {
  try {
    const std::regex parsed(filter, std::regex::extended);
    return absl::OkStatus();
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError("--filter '" + filter +
                                      "' is no regular expression: " + error.what());
  }
}

/// Has the library list what it would run, unread: nothing is measured yet.
absl::Status CheckFilter(const KernelsBenchOptions& options) {
  if (absl::Status status = CheckRegex(options.filter); !status.ok()) return status;
  RegisterAll(options);
  std::string name = "ziggurat bench kernels", list = "--benchmark_list_tests=true";
  char* arguments[] = {name.data(), list.data(), nullptr};
  int count = 2;
  benchmark::Initialize(&count, arguments);
  std::ostringstream unread;
  benchmark::ConsoleReporter reporter;
  reporter.SetOutputStream(&unread);
  reporter.SetErrorStream(&unread);
  const size_t matches = benchmark::RunSpecifiedBenchmarks(&reporter, options.filter);
  benchmark::ClearRegisteredBenchmarks();
  if (matches > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--filter '" + options.filter +
      "' matches nothing: names begin with decode/, prefill/, "
      "column_sums/, sample/ or gemm/, with --in-cache decode/ alone");
}

}  // namespace

absl::Status RunKernelsBench(const KernelsBenchOptions& options) {
  const auto backend = MakeCpuBackend(options.level, options.threads);
  if (!backend.ok()) return backend.status();
  machine.threads = options.threads;
  machine.level = options.level;
  machine.in_cache = options.in_cache;
  if (absl::Status status = CheckFilter(options); !status.ok()) return status;
  // A sequence in a cache has 1 MiB in bf16, with heads of size 128, and 2 in f32.
  MapSlab(options.in_cache ? options.threads * (size_t{9} << 18)
                           : static_cast<size_t>(options.gigabytes * (size_t{1} << 30)));
  machine.read_bandwidth = MeasureReadBandwidth(machine.slab, machine.bytes, machine.threads, 3);
  std::printf("%s, read bandwidth: %.1f GB/s with %d threads over %.3g GiB\n",
              std::string((*backend)->name()).c_str(), machine.read_bandwidth / 1e9,
              machine.threads, static_cast<double>(machine.bytes) / (size_t{1} << 30));
  RegisterAll(options);
  std::string name = "ziggurat bench kernels", filter = "--benchmark_filter=" + options.filter;
  std::string run = "--benchmark_list_tests=false";
  char* arguments[] = {name.data(), run.data(), filter.data(), nullptr};
  int count = options.filter.empty() ? 2 : 3;
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace ziggurat

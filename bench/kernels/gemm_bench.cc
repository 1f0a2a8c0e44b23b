#include "bench/kernels/gemm_bench.h"

#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/bfloat16.h"
#include "model/decoder/linear.h"
#include "model/decoder/weight_arena.h"

namespace ziggurat {
namespace {

constexpr int kIn = 2048;
constexpr int kOut = 8192;
constexpr int kCopies = 16;  // 512 MiB
constexpr double kWeightBytes = 2.0 * kIn * kOut;

/// Random numbers of about `scale`, the same ones over and over in a large matrix.
WeightMatrix RandomMatrix(int rows, int columns, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  WeightMatrix matrix(rows, columns, ElementType::kBf16);
  constexpr size_t kDifferent = size_t{1} << 20;
  auto* values = reinterpret_cast<uint16_t*>(matrix.data());
  for (size_t i = 0; i < matrix.bytes() / sizeof(uint16_t); ++i) {
    values[i] = i < kDifferent ? FloatToBf16(normal(random)) : values[i - kDifferent];
  }
  return matrix;
}

WeightMatrix ToF32(const WeightMatrix& bf16) {
  WeightMatrix matrix(bf16.rows(), bf16.columns(), ElementType::kF32);
  const auto* from = reinterpret_cast<const uint16_t*>(bf16.data());
  auto* to = reinterpret_cast<float*>(matrix.data());
  for (size_t i = 0; i < matrix.bytes() / sizeof(float); ++i) to[i] = Bf16ToFloat(from[i]);
  return matrix;
}

/// Weights of the decoder's linears, and the same for oneDNN alone.
class Products {
 public:
  Products()
      : factory_(MakeLinearFactory(ElementType::kBf16)),
        weight_(RandomMatrix(kOut, kIn, 0.02F, 1)) {
    for (int i = 0; i < kCopies; ++i) {
      auto linear = factory_->Make(weight_, {});
      if (!linear.ok()) {
        std::fprintf(stderr, "%s\n", linear.status().ToString().c_str());
        std::exit(1);
      }
      linears_.push_back(*std::move(linear));
    }
  }
  Linear& linear(int copy) const { return *linears_[copy]; }
  const WeightMatrix& weight() const { return weight_; }

 private:
  std::unique_ptr<LinearFactory> factory_;
  WeightMatrix weight_;
  std::vector<std::unique_ptr<Linear>> linears_;
};

/// oneDNN's product for one number of rows, the layout of the weights chosen for just that: in
/// bf16, or in f32 where that is all that it is fast at.
class OneDnnBest {
 public:
  OneDnnBest(int rows, const WeightMatrix& weight_bf16)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    using Tag = memory::format_tag;
    const bool is_bf16 = IsOneDnnFast(ElementType::kBf16);
    const auto type = is_bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    WeightMatrix weight = is_bf16 ? weight_bf16 : ToF32(weight_bf16);
    in_ = RandomMatrix(rows, kIn, 1, 2);
    if (!is_bf16) in_ = ToF32(in_);
    out_ = WeightMatrix(rows, kOut, in_.element());
    const memory::desc in({rows, kIn}, type, Tag::ab), out({rows, kOut}, type, Tag::ab);
    const memory::desc any({kIn, kOut}, type, Tag::any);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(engine_, in, any, out);
#else
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(in, any, out), engine_);
#endif
    product_ = dnnl::matmul(desc);
    memory source(memory::desc({kIn, kOut}, type, Tag::ba), engine_, weight.data());
    for (int i = 0; i < kCopies; ++i) {
      std::byte* const bytes = arena_.Allocate(desc.weights_desc().get_size());
      if (bytes == nullptr) {
        std::fprintf(stderr, "no memory for weights\n");
        std::exit(1);
      }
      memory packed(desc.weights_desc(), engine_, bytes);
      dnnl::reorder(source, packed).execute(stream_, source, packed);
      weights_.push_back(packed);
    }
    stream_.wait();
    x_ = memory(in, engine_, in_.data());
    y_ = memory(out, engine_, out_.data());
  }
  void Run(int copy) {
    product_.execute(stream_,
                     {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights_[copy]}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }

 private:
  WeightArena arena_;
  WeightMatrix in_, out_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  std::vector<dnnl::memory> weights_;
  dnnl::memory x_, y_;
};

/// Seconds of one product, over all copies.
double Seconds(const std::function<void(int copy)>& product) {
  const auto start = std::chrono::steady_clock::now();
  for (int copy = 0; copy < kCopies; ++copy) product(copy);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCopies;
}

void BM_Gemm(benchmark::State& state, const std::shared_ptr<Products>& products, int rows,
             int threads, double read_bandwidth) {
  omp_set_num_threads(threads);
  const WeightMatrix x = RandomMatrix(rows, kIn, 1, 2);
  WeightMatrix y(rows, kOut, ElementType::kBf16);
  OneDnnBest best(rows, products->weight());
  const auto ours = [&](int copy) {
    const absl::Status status =
        products->linear(copy).Run(x.data(), rows, ElementType::kBf16, y.data());
    if (!status.ok()) state.SkipWithError(status.ToString().c_str());
  };
  const auto theirs = [&](int copy) { best.Run(copy); };
  Seconds(ours);
  Seconds(theirs);
  double our_seconds = INFINITY, their_seconds = INFINITY;
  for (auto _ : state) {
    const double seconds = Seconds(ours);
    state.SetIterationTime(seconds);
    our_seconds = std::min(our_seconds, seconds);
    their_seconds = std::min(their_seconds, Seconds(theirs));
  }
  state.counters["GB/s"] = kWeightBytes / our_seconds / 1e9;
  state.counters["percent_of_read"] = 100 * kWeightBytes / our_seconds / read_bandwidth;
  state.counters["GFLOP/s"] = rows * kWeightBytes / our_seconds / 1e9;
  state.counters["percent_of_onednn"] = 100 * their_seconds / our_seconds;
}

}  // namespace

void RegisterGemmBench(int threads, double read_bandwidth) {
  const auto products = std::make_shared<std::shared_ptr<Products>>();
  for (const int rows : {1, 8, 32, 128, 512}) {
    const std::string name = "gemm/bf16/2048x8192/rows:" + std::to_string(rows);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) {
                                   if (*products == nullptr)
                                     *products = std::make_shared<Products>();
                                   BM_Gemm(state, *products, rows, threads, read_bandwidth);
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(5);
  }
}

}  // namespace ziggurat

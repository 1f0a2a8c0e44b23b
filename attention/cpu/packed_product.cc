#include "attention/packed_product.h"

#include <omp.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "attention/cpu/kernels.h"
#include "attention/cpu/thread_scratch.h"
#include "attention/parallel.h"

namespace ziggurat {
namespace {

using cpu::ProductKernels;

constexpr int kPanel = PackedWeights::kPanel;
constexpr size_t kPanelRowBytes = 4 * kPanel;
/// Rows of x that meet a panel while it is in cache: whole blocks of any kernels.
constexpr int kRowsPerTask = 128;
static_assert(kRowsPerTask % cpu::kMostBlockRows == 0);
/// Rows up to which our kernels are at least as fast as oneDNN's: they read weights faster from
/// memory.
int MostRows(CpuLevel level) {
  switch (level) {
    case CpuLevel::kZen4:
      return 64;
    case CpuLevel::kZen5:
      return 128;
    default:
      return INT_MAX;  // with many rows too
  }
}

class CpuPackedProduct final : public PackedProduct {
 public:
  CpuPackedProduct(const ProductKernels& kernels, int max_rows)
      : kernels_(kernels), max_rows_(max_rows) {}

  int max_rows() const override { return max_rows_; }

  void Run(const PackedWeights& weights, const void* x, int rows, ElementType out, bool accumulates,
           void* y) override {
    const int threads = omp_get_max_threads();
    Pack(threads, weights.in_features, static_cast<const uint16_t*>(x), rows);
    const size_t panels = weights.panels();
    const size_t blocks = (rows + kRowsPerTask - 1) / kRowsPerTask;
    // With one block of rows every thread reads a range of neighbouring panels.
    if (blocks == 1) {
      ParallelRanges(
          threads, panels, kPanelRowBytes * weights.rows(), [&](size_t begin, size_t end) {
            const size_t most = rows == 1 ? kernels_.panels_at_once : 1;
            for (size_t panel = begin; panel < end; panel += most) {
              Multiply(weights, panel, std::min(most, end - panel), 0, rows, out, accumulates, y);
            }
          });
      return;
    }
    ParallelFor(threads, blocks * panels, [&](size_t i, int) {
      const int first = static_cast<int>(i / panels) * kRowsPerTask;
      Multiply(weights, i % panels, /*panels=*/1, first, std::min(kRowsPerTask, rows - first), out,
               accumulates, y);
    });
  }

 private:
  void Pack(int threads, int in_features, const uint16_t* x, int rows) {
    const int most = kernels_.block_rows;
    const size_t blocks = (rows + most - 1) / most;
    const auto pack = [&](size_t block, int /*thread*/) {
      const size_t first = block * most;
      kernels_.pack(x + first * in_features, std::min(most, rows - static_cast<int>(first)),
                    in_features, packed_.data() + block * kernels_.block_floats(in_features));
    };
    packed_.Reserve(blocks * kernels_.block_floats(in_features));
    ParallelFor(static_cast<size_t>(rows) * in_features < kElementsWorthThreads ? 1 : threads,
                blocks, pack);
  }

  /// Rows [first, first + count) times `panels` neighbouring panels: one, or one row times several.
  void Multiply(const PackedWeights& weights, size_t panel, size_t panels, int first, int count,
                ElementType out, bool accumulates, void* y) const {
    alignas(64) float sums[kRowsPerTask * kPanel];
    const size_t panel_bytes = weights.rows() * kPanelRowBytes;
    std::fill_n(sums, count * panels * kPanel, 0.0f);
    kernels_.add({.in_features = weights.in_features,
                  .count = count,
                  .panels = static_cast<int>(panels),
                  .packed = packed_.data() + first / kernels_.block_rows *
                                                 kernels_.block_floats(weights.in_features),
                  .weights = weights.data + panel * panel_bytes,
                  .panel_bytes = panel_bytes,
                  .sums = sums});
    for (size_t p = 0; p < panels; ++p) {
      Store(weights, (panel + p) * kPanel, sums + p * kPanel, first, count, out, accumulates, y);
    }
  }

  /// The outputs of a panel, of which `output` is the first.
  void Store(const PackedWeights& weights, size_t output, const float* sums, int first, int count,
             ElementType out, bool accumulates, void* y) const {
    const int outputs = std::min(kPanel, weights.out_features - static_cast<int>(output));
    const float* bias = weights.bias == nullptr ? nullptr : weights.bias + output;
    for (int i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(first + i) * weights.out_features + output;
      kernels_.store(sums + i * kPanel, bias, outputs, accumulates, out == ElementType::kBf16,
                     static_cast<std::byte*>(y) + at * ElementBytes(out));
    }
  }

  const ProductKernels& kernels_;
  int max_rows_;
  cpu::AlignedFloats packed_;
};

}  // namespace

void PackWeights(const uint16_t* weight, int in_features, int out_features, std::byte* packed) {
  const PackedWeights shape{.in_features = in_features, .out_features = out_features};
  const size_t pairs = in_features / 2;
  const auto pack_panel = [&](size_t panel, int) {
    std::byte* row = packed + panel * shape.rows() * kPanelRowBytes;
    std::memset(row, 0, shape.rows() * kPanelRowBytes);
    const size_t first = panel * kPanel;
    const int outputs = std::min(kPanel, out_features - static_cast<int>(first));
    for (size_t pair = 0; pair < pairs; ++pair, row += kPanelRowBytes) {
      for (int o = 0; o < outputs; ++o) {
        std::memcpy(row + 4 * o, weight + (first + o) * in_features + 2 * pair, 4);
      }
    }
  };
  ParallelFor(omp_get_max_threads(), shape.panels(), pack_panel);
}

std::unique_ptr<PackedProduct> MakePackedProduct(CpuLevel level) {
  return std::make_unique<CpuPackedProduct>(cpu::KernelsOf(level).product, MostRows(level));
}

}  // namespace ziggurat

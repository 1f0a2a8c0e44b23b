// Matrix products over packed bf16 weights (attention/packed_product.h), a panel of 64 outputs at a
// time. How a row of weights meets the cells of a query is that of keys (score_tiles.h).
#pragma once

#include <limits>
#include <type_traits>

#include "attention/cpu/packed_workspace.h"
#include "attention/cpu/score_tiles.h"

namespace ziggurat::cpu {
namespace {

constexpr int kPanelOutputs = 64;
constexpr size_t kPanelRowBytes = 4 * kPanelOutputs;
/// Rows of x that are packed at a time, and that widened weights meet.
constexpr int kBlockRows = 8;
template <class V>
constexpr int kPanelVectors = kPanelOutputs / V::kLanes;
/// Rows after which a fetched line is needed, where a panel is read in one pass.
constexpr int kSoon = 64;

/// Rows of x that are multiplied at once, of `rows`, and the vectors of outputs that leave their
/// sums in registers.
template <class V>
constexpr int RowsAtOnce(int rows) {
  return Smaller(rows, QueriesAtOnce<V>());
}
template <class V>
constexpr int VectorsAtOnce(int rows) {
  return Smaller(kPanelVectors<V>, V::kAccumulators / RowsAtOnce<V>(rows == 3 ? 4 : rows));
}

/// Fetches `kLines` lines with every row of a panel that is multiplied: all lines of a row into L1,
/// less of them into L2.
template <int kLines>
struct FetchLines {
  const std::byte* ahead;

  void Row() {
    Prefetch<kLines == 4 ? _MM_HINT_T0 : _MM_HINT_T1>(ahead, 64 * kLines);
    ahead += 64 * kLines;
  }
};

/// Fetches `kLines` lines into that cache with every so many rows that are multiplied, `kStep`
/// bytes further each time; and those kFurtherBytes behind them into L2, if that is not 0.
template <int kLines, size_t kStep, _mm_hint kCache, size_t kFurtherBytes = 0>
struct FetchNowAndThen {
  const std::byte* ahead;
  int every;
  int left = 1;

  void Row() {
    if (--left > 0) return;
    left = every;
    Prefetch<kCache>(ahead, 64 * kLines);
    if constexpr (kFurtherBytes > 0) Prefetch<_MM_HINT_T1>(ahead + kFurtherBytes, 64 * kLines);
    ahead += kStep;
  }
};

/// Fetches a line with every row that is multiplied, each time `step` bytes further on: where that
/// is less than a line, one comes several times, which costs less than to count; where it is more,
/// some are left to the hardware.
struct FetchEvenly {
  const std::byte* ahead;
  size_t step;

  void Row() {
    Prefetch<_MM_HINT_T0>(ahead, 64);
    ahead += step;
  }
};

/// sums[i][v] += x i . weights of vector v, for NQ rows of x and `Vectors` vectors of outputs.
///   x        [rows][Of][kCells], of which the first NQ of each row are taken
///   weights  row r at weights + r * kRowBytes
///   sums     [NQ] rows, a panel apart
template <class Keys, int NQ, int Of, int Vectors, size_t kRowBytes, class Fetch>
inline void AddPanel(const float* x, int rows, const std::byte* weights, Fetch* fetch,
                     float* sums) {
  using V = typename Keys::Simd;
  constexpr int kVectorBytes = V::kLanes * 4;
  // Widened vectors, two registers each, stay beside the sums where there is room for all of them.
  constexpr bool kIsRoomy = (NQ + 2) * Vectors < V::kRegisters;
  typename V::Float sum[NQ][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[i][v] = V::Load(sums + i * kPanelOutputs + v * V::kLanes);
  }
  for (int r = 0; r < rows; ++r) {
    const std::byte* p = weights + r * kRowBytes;
    const float* cells = x + r * Of * Keys::kCells;
    fetch->Row();
    if constexpr (kIsRoomy) {
      typename Keys::Row row[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) row[v] = Keys::Load(p + v * kVectorBytes);
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          sum[i][v] = Keys::Dot(sum[i][v], row[v], cells + i * Keys::kCells);
        }
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const typename Keys::Row row = Keys::Load(p + v * kVectorBytes);
#pragma GCC unroll 8
        for (int i = 0; i < NQ; ++i) {
          sum[i][v] = Keys::Dot(sum[i][v], row, cells + i * Keys::kCells);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) V::Store(sums + i * kPanelOutputs + v * V::kLanes, sum[i][v]);
  }
}

/// Rows of weights that stay in the nearest cache while all of x meets them.
template <class V>
constexpr int kNearRows = V::kRegisters == 16 ? 64 : 32;
/// So many bytes behind those that are fetched into L1 come those that are fetched into L2, which
/// can wait for more lines at a time. 0: none. Of CPUs with AVX-512 only Intel's widen weights.
template <class V>
constexpr size_t kBytesToL2 = V::kRegisters == 16 ? 0 : 32 << 10;

/// Of a packed row of x.
template <class Keys>
constexpr size_t RowFloats(int in_features) {
  return static_cast<size_t>(in_features) / 2 * Keys::Many::kCells;
}

/// Calls meet.operator()<How, NQ>(i, x, sums) for all sub-blocks of x from row `begin` on: for that
/// of rows [i, i + NQ), read by How, what meets the rows of weights from `first` on, and its sums.
template <class Keys, class Meet>
__attribute__((always_inline)) inline void ForEachSubBlock(const ProductJob& job, int begin,
                                                           int first, Meet meet) {
  for (int i = begin, size; i < job.count; i += size) {
    size = NextSubBlock(job.count - i);
    ForSubBlock(size, [&]<int NQ>() {
      using How = KeysFor<Keys, NQ>;
      meet.template operator()<How, NQ>(i,
                                        job.packed + i * RowFloats<Keys>(job.in_features) +
                                            static_cast<size_t>(first) * NQ * How::kCells,
                                        job.sums + i * kPanelOutputs);
    });
  }
}

/// Passes over the rows of a panel in which a sub-block of NQ rows of x meets all outputs.
template <class V, int NQ>
constexpr int kPasses = kPanelVectors<V> / VectorsAtOnce<V>(NQ) * (NQ / RowsAtOnce<V>(NQ));

/// All outputs of `some` rows of a panel, `near`, for a sub-block of NQ rows of x.
template <class Keys, int NQ, class Fetch>
inline void MeetNearRows(const float* x, int some, const std::byte* near, Fetch* fetch,
                         float* sums) {
  using V = typename Keys::Simd;
  constexpr int kRows = RowsAtOnce<V>(NQ), kVectors = VectorsAtOnce<V>(NQ);
  for (int output = 0; output < kPanelOutputs; output += kVectors * V::kLanes) {
#pragma GCC unroll 2
    for (int i = 0; i < NQ; i += kRows) {
      AddPanel<Keys, kRows, NQ, kVectors, kPanelRowBytes>(
          x + i * Keys::kCells, some, near + output * 4, fetch, sums + i * kPanelOutputs + output);
    }
  }
}

/// Rows of x from `begin` on times a panel, a few rows of weights at a time.
template <class Keys>
inline void AddNearRows(const ProductJob& job, int begin) {
  constexpr int kNear = kNearRows<typename Keys::Simd>;
  const int rows = job.in_features / 2;
  for (int first = 0; first < rows; first += kNear) {
    const int some = Smaller(kNear, rows - first);
    const std::byte* const near = job.weights + first * kPanelRowBytes;
    ForEachSubBlock<Keys>(job, begin, first,
                          [=]<class How, int NQ>(int i, const float* x, float* sums) {
                            using V = typename How::Simd;
                            // The four lines of a row, spread over all passes over it.
                            constexpr int kLines = Larger(1, 4 / kPasses<V, NQ>);
                            FetchNowAndThen<kLines, 64 * kLines, _MM_HINT_T0, kBytesToL2<V>> next{
                                near + some * kPanelRowBytes, Larger(1, kPasses<V, NQ> / 4)};
                            FetchLines<0> nothing{};
                            if (i == begin)
                              return MeetNearRows<How, NQ>(x, some, near, &next, sums);
                            MeetNearRows<How, NQ>(x, some, near, &nothing, sums);
                          });
  }
}

/// All of x times a panel, a few rows of weights at a time; those that come next are fetched evenly
/// over all passes.
template <class Keys>
inline void AddManyRows(const ProductJob& job) {
  using V = typename Keys::Simd;
  constexpr int kNear = kNearRows<V>;
  const int rows = job.in_features / 2;
  int passes = 0;
  ForEachSubBlock<Keys>(job, /*begin=*/0, /*first=*/0,
                        [&]<class How, int NQ>(int, const float*, float*) {
                          passes += kPasses<typename How::Simd, NQ>;
                        });
  const size_t step = (kPanelRowBytes + passes - 1) / passes;
  for (int first = 0; first < rows; first += kNear) {
    const int some = Smaller(kNear, rows - first);
    const std::byte* const near = job.weights + first * kPanelRowBytes;
    FetchEvenly fetch{near + some * kPanelRowBytes, step};
    ForEachSubBlock<Keys>(job, /*begin=*/0, first,
                          [&]<class How, int NQ>(int, const float* x, float* sums) {
                            MeetNearRows<How, NQ>(x, some, near, &fetch, sums);
                          });
  }
}

/// All outputs of a panel, for a sub-block of NQ rows of x, pass after pass over all rows of
/// weights, each with some vectors of outputs.
template <class Keys, int NQ>
inline void AddPasses(const float* x, int rows, const std::byte* weights, float* sums) {
  using V = typename Keys::Simd;
  constexpr int kVectors = VectorsAtOnce<V>(NQ), kPasses = cpu::kPasses<V, NQ>;
  static_assert(RowsAtOnce<V>(NQ) == NQ);
  // In one pass over the panel what is needed soon is fetched; of several passes each fetches a
  // part of the next panel: the first alone would wait for memory, and the others leave it idle.
  FetchLines<4 / kPasses> fetch{weights + (kPasses == 1 ? kSoon : rows) * kPanelRowBytes};
  for (int pass = 0; pass < kPasses; ++pass) {
    const int output = pass * kVectors * V::kLanes;
    AddPanel<Keys, NQ, NQ, kVectors, kPanelRowBytes>(x, rows, weights + output * 4, &fetch,
                                                     sums + output);
  }
}

/// A sub-block of NQ rows of x as cells, [pairs of inputs][NQ][kCells]: of two cells each input has
/// its own, of one both share it as they are.
template <class Keys, int NQ>
inline void PackSubBlock(const uint16_t* x, int in_features, float* packed) {
  using V = typename Keys::Simd;
  static_assert(Keys::kChannelsPerRow == 2 && Keys::kCells <= 2);
  constexpr int kPairsAtOnce = 64;
  uint16_t inputs[2 * kPairsAtOnce * NQ];
  const int rows = in_features / 2;
  for (int first = 0; first < rows; first += kPairsAtOnce) {
    const int some = Smaller(kPairsAtOnce, rows - first);
    float* const to = packed + static_cast<size_t>(first) * NQ * Keys::kCells;
    auto* const pairs =
        Keys::kCells == 1 ? reinterpret_cast<std::byte*>(to) : reinterpret_cast<std::byte*>(inputs);
    for (int r = 0; r < some; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
        __builtin_memcpy(pairs + 4 * (r * NQ + i),
                         x + static_cast<size_t>(i) * in_features + 2 * (first + r), 4);
      }
    }
    if constexpr (Keys::kCells == 2) {
      ForEachVector<V>(2 * some * NQ, [&](size_t c, int lanes) {
        StoreUpTo<V, F32Element>(to + c, LoadUpTo<V, Bf16Element>(inputs + c, lanes), lanes);
      });
    }
  }
}

/// ProductKernels::pack.
template <class Keys>
void PackProductRows(const uint16_t* x, int count, int in_features, float* packed) {
  for (int i = 0, size; i < count; i += size) {
    size = NextSubBlock(count - i);
    ForSubBlock(size, [&]<int NQ>() {
      PackSubBlock<KeysFor<Keys, NQ>, NQ>(x + static_cast<size_t>(i) * in_features, in_features,
                                          packed + i * RowFloats<Keys>(in_features));
    });
  }
}

/// Rows of weights that are widened at once: a part of a panel of them stays in the nearest cache,
/// beside eight rows of x, while all of x meets it.
constexpr int kWidenedRows = 96;

/// `kVectors` vectors of `rows` rows of a panel, widened for HalvesOfBf16Keys.
template <class V, int kVectors>
inline void WidenPart(const std::byte* weights, int rows, float* to) {
  for (int r = 0; r < rows; ++r, to += 2 * kVectors * V::kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const typename V::Bits bits = V::LoadBits(weights + r * kPanelRowBytes + v * V::kLanes * 4);
      V::Store(to + v * V::kLanes, V::Low(bits));
      V::Store(to + (kVectors + v) * V::kLanes, V::High(bits));
    }
  }
}

/// The first `count` rows of x, a multiple of kBlockRows: enough of them to widen the weights only
/// once.
template <class V>
inline void AddWidenedProduct(const ProductJob& job, int count) {
  constexpr int kRows = RowsAtOnce<V>(kBlockRows), kVectors = VectorsAtOnce<V>(kBlockRows);
  constexpr int kPartBytes = kVectors * V::kLanes * 4;
  using Keys = HalvesOfBf16Keys<V, kVectors>;
  alignas(64) float widened[kWidenedRows * 2 * kPartBytes / sizeof(float)];
  const int rows = job.in_features / 2;
  for (int first = 0; first < rows; first += kWidenedRows) {
    const int some = Smaller(kWidenedRows, rows - first);
    const std::byte* weights = job.weights + first * kPanelRowBytes;
    for (int part = 0; part < static_cast<int>(kPanelRowBytes); part += kPartBytes) {
      WidenPart<V, kVectors>(weights + part, some, widened);
      // What is widened next, spread over the whole of this part.
      const bool is_last = part + kPartBytes == kPanelRowBytes;
      FetchNowAndThen<kPartBytes / 64, kPanelRowBytes, _MM_HINT_T1> fetch{
          weights + (is_last ? some * kPanelRowBytes : part + kPartBytes), count / kRows};
      for (int i = 0; i < count; i += kRows) {
        const float* block = job.packed +
                             static_cast<size_t>(i / kBlockRows * kBlockRows) * job.in_features +
                             size_t{2 * kBlockRows} * first;
        AddPanel<Keys, kRows, kBlockRows, kVectors, 2 * kPartBytes>(
            block + i % kBlockRows * Keys::kCells, some,
            reinterpret_cast<const std::byte*>(widened), &fetch,
            job.sums + i * kPanelOutputs + part / 4);
      }
    }
  }
}

/// One row of x times some panels, a few rows of each in turn: of several runs of addresses the
/// hardware fetches more by itself than when it is told what comes next.
template <class Keys>
inline void AddOneRow(const ProductJob& job) {
  using V = typename Keys::Simd;
  constexpr int kInTurn = 4;
  const int rows = job.in_features / 2;
  FetchLines<0> fetch{};
  for (int first = 0; first < rows; first += kInTurn) {
    for (int panel = 0; panel < job.panels; ++panel) {
      AddPanel<Keys, 1, 1, kPanelVectors<V>, kPanelRowBytes>(
          job.packed + first * Keys::kCells, Smaller(kInTurn, rows - first),
          job.weights + panel * job.panel_bytes + first * kPanelRowBytes, &fetch,
          job.sums + panel * kPanelOutputs);
    }
  }
}

/// All of x times a panel, which is read pass after pass.
template <class Keys>
inline void AddInPasses(const ProductJob& job) {
  // So many rows of a panel, and of x, stay in the nearest caches while they meet.
  constexpr int kRowsAtOnce = 1024;
  const int rows = job.in_features / 2;
  for (int first = 0; first < rows; first += kRowsAtOnce) {
    const int some = Smaller(kRowsAtOnce, rows - first);
    const std::byte* const weights = job.weights + first * kPanelRowBytes;
    ForEachSubBlock<Keys>(job, /*begin=*/0, first,
                          [=]<class How, int NQ>(int /*i*/, const float* x, float* sums) {
                            AddPasses<How, NQ>(x, some, weights, sums);
                          });
  }
}

/// ProductKernels::add.
template <class Keys, int kPanelsAtOnce, int kManyRows>
void AddProduct(const ProductJob& job) {
  using V = typename Keys::Simd;
  if constexpr (kPanelsAtOnce > 1) {
    if (job.count == 1) return AddOneRow<typename Keys::One>(job);
  }
  if constexpr (std::is_same_v<typename Keys::Many, WidenedBf16Keys<V>>) {
    int done = 0;
    if (job.count >= 16) {
      done = job.count / kBlockRows * kBlockRows;
      AddWidenedProduct<V>(job, done);
    }
    if (done < job.count) AddNearRows<Keys>(job, done);
  } else if (job.count >= kManyRows) {
    AddManyRows<Keys>(job);
  } else {
    AddInPasses<Keys>(job);
  }
}

/// ProductKernels::store.
template <class V>
void StoreProductRow(const float* sums, const float* bias, int count, bool accumulates,
                     bool is_bf16, void* y) {
  const auto finish = [&]<class Element>(typename Element::Type* out) {
    ForEachVector<V>(count, [&](size_t c, int lanes) {
      typename V::Float value = V::Load(sums + c);
      if (bias != nullptr) value = V::Add(value, LoadUpTo<V, F32Element>(bias + c, lanes));
      if (accumulates) value = V::Add(value, LoadUpTo<V, Element>(out + c, lanes));
      StoreUpTo<V, Element>(out + c, value, lanes);
    });
  };
  if (is_bf16) {
    finish.template operator()<Bf16Element>(static_cast<uint16_t*>(y));
  } else {
    finish.template operator()<F32Element>(static_cast<float*>(y));
  }
}

/// kPanelsAtOnce: ProductKernels::panels_at_once. Four are best on AMD's Zen 3; Zen 4, Zen 5 and
/// Intel's server CPUs read one at a time, fetched ahead.
/// kManyRows: rows of x from which a few rows of weights meet all of them (AddManyRows), where
/// weights are not widened.
template <class Keys, int kPanelsAtOnce = 1, int kManyRows = std::numeric_limits<int>::max()>
constexpr ProductKernels MakeProductKernels() {
  return {.block_rows = kBlockRows,
          .panels_at_once = kPanelsAtOnce,
          .block_floats = [](int in_features) { return kBlockRows * RowFloats<Keys>(in_features); },
          .pack = PackProductRows<Keys>,
          .add = AddProduct<Keys, kPanelsAtOnce, kManyRows>,
          .store = StoreProductRow<typename Keys::Simd>};
}

}  // namespace
}  // namespace ziggurat::cpu

// What a warp of partial attention on tensor cores has in registers, and what does not depend on
// how keys and values come: queries, the softmax, weights times values, the result. What stands
// where: tensor_attend.cuh.
#pragma once

#include "attention/cuda/decode_share.cuh"
#include "attention/cuda/packed_codes.cuh"

namespace ziggurat::cuda {

/// What the loads of one format and (largest) head size look like.
template <Encoding kEncoding, int kMaxDim>
struct TensorShape {
  using Cell = CellTraits<kEncoding>;
  static constexpr int kCells = kMaxDim / Cell::kChannels;  ///< of a slot
  static constexpr int kKeyLoads = (kCells + 3) / 4;
  static constexpr int kKeyPairs = kKeyLoads * Cell::kPairs;  ///< even: two make a step of 16
  /// Keys that are under way at the same time, in loads.
  static constexpr int kKeyBatch = kKeyLoads < 16 ? kKeyLoads : 16;

  static constexpr int kRowBytes = kCells * 4;
  static constexpr int kPieceBytes = ValuePieceBytes(kEncoding, kMaxDim);
  static constexpr int kPieceCells = kPieceBytes / 4;
  static constexpr int kPieceChannels = kPieceCells * Cell::kChannels;
  static constexpr int kPasses = (kRowBytes / kPieceBytes + 7) / 8;
  static constexpr int kTiles = kPieceChannels / 2;  ///< of 16 channels, in a pass
  static constexpr int kParts = kMaxDim / 32;
};

template <Encoding kEncoding, int kMaxDim>
struct TensorState {
  using Traits = TensorShape<kEncoding, kMaxDim>;
  using Cell = typename Traits::Cell;

  const DecodeArguments& a;
  const DecodePlan& plan;
  const int r = LaneOfThread() / 4;
  const int c = LaneOfThread() % 4;
  uint32_t queries[Traits::kKeyPairs] = {};
  float out[Traits::kPasses][Traits::kTiles][4] = {};
  float highest[2] = {};  ///< of heads 2 c and 2 c + 1; of scores times log2(e)
  float sum[2] = {};

  __device__ void Clear() {
    ZIGGURAT_UNROLL
    for (int pass = 0; pass < Traits::kPasses; ++pass) {
      ZIGGURAT_UNROLL
      for (int tile = 0; tile < Traits::kTiles; ++tile) {
        for (int i = 0; i < 4; ++i) out[pass][tile][i] = 0;
      }
    }
    highest[0] = highest[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }

  /// Of head r, the channels that this lane's cells of keys have. kForTiny: as they meet codes of
  /// TinyPairOfCell.
  template <bool kForTiny = false>
  __device__ void LoadQueries(const DecodeRun& run) {
    const int dim = a.shape.head_dim;
    const float* row = QueriesOf(a, run) + static_cast<size_t>(r) * dim;
    ZIGGURAT_UNROLL
    for (int load = 0; load < Traits::kKeyLoads; ++load) {
      const int first = (4 * load + c) * Cell::kChannels;
      float channels[Cell::kChannels] = {};
      if (r < run.heads && first < dim) {
        ZIGGURAT_UNROLL
        for (int i = 0; i < Cell::kChannels; i += 2) {
          const float2 two = *reinterpret_cast<const float2*>(row + first + i);
          channels[i] = two.x, channels[i + 1] = two.y;
        }
      }
      ZIGGURAT_UNROLL
      for (int i = 0; i < Cell::kPairs; ++i) {
        const int pair = Cell::PairAt(i);
        float factor = 1;
        if constexpr (kForTiny) factor = PowerOfTwo(kPowerForTiny - TinyShift<kEncoding>(pair));
        queries[load * Cell::kPairs + i] = PackBf16(channels[Cell::ChannelOf(pair, 0)] * factor,
                                                    channels[Cell::ChannelOf(pair, 1)] * factor);
      }
    }
  }

  /// Scores become weights relative to the highest so far. `weights[i]`: of head r, those of slots
  /// 8 c + i and 8 c + 4 + i.
  ///   live      how many of this lane's slots 4 r .. 4 r + 3 live
  ///   factors   what their keys and values are multiplied by besides
  ///   shrink    what is to become of sums so far, of heads 2 c and 2 c + 1
  ///   kPower    weights, and `sum` with them, are 2^kPower times as large
  /// Returns whether any lane's shrinks: after the first chunks a new highest score is rare.
  template <int kPower = 0>
  __device__ bool AddWeights(int live, const float (&key_factors)[4],
                             const float (&value_factors)[4], float (&scores)[2][4],
                             uint32_t (&weights)[4], float (&shrink)[2]) {
    float top[2] = {-INFINITY, -INFINITY};
    const float scale = a.shape.scale * kLog2E;
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {  // slot 4 r + i: row r or r + 8 of fragment i / 2
      const float factor = scale * key_factors[i];
      ZIGGURAT_UNROLL
      for (int head = 0; head < 2; ++head) {
        float& score = scores[i / 2][2 * (i % 2) + head];
        score = i < live ? score * factor : -INFINITY;
        top[head] = fmaxf(top[head], score);
      }
    }
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) {
      for (int lanes = 4; lanes < kWarp; lanes *= 2) {
        top[head] = fmaxf(top[head], __shfl_xor_sync(kAllLanes, top[head], lanes));
      }
      top[head] = fmaxf(top[head], highest[head]);
      shrink[head] = Exp2(highest[head] - top[head]);
      highest[head] = top[head];
    }
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) sum[head] *= shrink[head];
    ZIGGURAT_UNROLL
    for (int i = 0; i < 4; ++i) {
      float weight[2];
      ZIGGURAT_UNROLL
      for (int head = 0; head < 2; ++head) {
        weight[head] = Exp2(scores[i / 2][2 * (i % 2) + head] - (top[head] - kPower));
        sum[head] += weight[head];
        weight[head] *= value_factors[i];
      }
      weights[i] = Transpose(PackBf16(weight[0], weight[1]));
    }
    return __any_sync(kAllLanes, shrink[0] != 1 || shrink[1] != 1) != 0;
  }

  template <int kCount>
  __device__ static void ScaleBy(const float (&shrink)[2], float (&tiles)[kCount][4]) {
    ZIGGURAT_UNROLL
    for (int tile = 0; tile < kCount; ++tile) {
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; ++i) tiles[tile][i] *= shrink[i % 2];
    }
  }

  /// `cells[i]`: of slot 8 c + i. `to`: the tiles of their channels.
  __device__ static void MultiplyCells(const uint32_t (&cells)[8], const uint32_t (&scales)[4],
                                       const uint32_t (&zeros)[4], const uint32_t (&weights)[4],
                                       float (*to)[4]) {
    ZIGGURAT_UNROLL
    for (int j = 0; j < Cell::kPairs; ++j) {  // channels 2 j and 2 j + 1 of the cell
      uint32_t x[2][4];
      ZIGGURAT_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        ZIGGURAT_UNROLL
        for (int i = 0; i < 4; ++i) {
          x[odd][i] = PairOfSlots<kEncoding>(cells[i], cells[i + 4], 2 * j + odd);
          if constexpr (IsGrouped(kEncoding)) x[odd][i] = FusedBf16(x[odd][i], scales[i], zeros[i]);
        }
      }
      ZIGGURAT_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const uint32_t fragment[4] = {x[0][i], x[1][i], x[0][i + 1], x[1][i + 1]};
        MultiplyAdd(fragment, weights[i], weights[i + 1], to[j]);
      }
    }
  }

  __device__ void Store(const DecodeRun& run) {
    const int dim = a.shape.head_dim;
    ZIGGURAT_UNROLL
    for (int head = 0; head < 2; ++head) {
      for (int lanes = 4; lanes < kWarp; lanes *= 2) {
        sum[head] += __shfl_xor_sync(kAllLanes, sum[head], lanes);
      }
      if (2 * c + head >= run.heads) continue;
      const size_t row = static_cast<size_t>(run.partial) * HeadsOfPass(a.shape) + 2 * c + head;
      if (r == 0) plan.lse[row] = highest[head] * kLn2 + __logf(sum[head]);
      const float inverse = 1 / sum[head];
      ZIGGURAT_UNROLL
      for (int pass = 0; pass < Traits::kPasses; ++pass) {
        const int first = (8 * pass + r) * Traits::kPieceChannels;
        if (first >= dim) break;
        float* to = plan.out + row * dim + first;
        ZIGGURAT_UNROLL
        for (int tile = 0; tile < Traits::kTiles; ++tile) {
          *reinterpret_cast<float2*>(to + 2 * tile) =
              make_float2(out[pass][tile][head] * inverse, out[pass][tile][2 + head] * inverse);
        }
      }
    }
  }
};

}  // namespace ziggurat::cuda

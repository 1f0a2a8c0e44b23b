// The twin that the fast backends are checked against: plain loops, one thread, double throughout.
// Every formula stands here once, as it is written in backend.h, and nothing is clever.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/backend.h"
#include "attention/bfloat16.h"

namespace ziggurat {
namespace {

double LoadElement(ElementType element, const void* data, size_t index) {
  if (element == ElementType::kF32) return static_cast<const float*>(data)[index];
  return Bf16ToFloat(static_cast<const uint16_t*>(data)[index]);
}

void StoreElement(ElementType element, void* data, size_t index, double value) {
  const float rounded = static_cast<float>(value);
  if (element == ElementType::kF32) {
    static_cast<float*>(data)[index] = rounded;
  } else {
    static_cast<uint16_t*>(data)[index] = FloatToBf16(rounded);
  }
}

/// The area of one head of a segment in the block that holds `slot`, and the slot's place in it.
struct SlotPlace {
  std::byte* area;
  uint32_t slot;  ///< within the block
  uint32_t slots_per_block;
  ElementType element;
};

SlotPlace FindSlot(PoolView pool, const SegmentView& segment, const PlaneView& plane, int kv_head,
                   int slot) {
  const uint32_t block = slot / plane.slots_per_block;
  const size_t head = static_cast<size_t>(kv_head - segment.first_kv_head);
  return {pool.Block(plane.blocks[block]) + head * plane.head_stride_bytes + plane.offset_bytes,
          slot % plane.slots_per_block, plane.slots_per_block, segment.element};
}

/// Index of a channel of a key, in elements: [D / x][S][x].
size_t KeyIndex(const SlotPlace& place, int channel) {
  const int x = 4 / static_cast<int>(ElementBytes(place.element));
  return (static_cast<size_t>(channel / x) * place.slots_per_block + place.slot) * x + channel % x;
}

/// Index of a channel of a value, in elements: [S][D].
size_t ValueIndex(const SlotPlace& place, int channel, int head_dim) {
  return static_cast<size_t>(place.slot) * head_dim + channel;
}

/// Softmax of `scores` in place; returns the log-sum-exp.
double Softmax(std::vector<double>* scores) {
  if (scores->empty()) return -std::numeric_limits<double>::infinity();
  const double highest = *std::max_element(scores->begin(), scores->end());
  double sum = 0;
  for (double& score : *scores) sum += score = std::exp(score - highest);
  for (double& score : *scores) score /= sum;
  return highest + std::log(sum);
}

class ReferenceBackend final : public AttentionBackend {
 public:
  std::string_view name() const override { return "reference"; }

  void PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                        ElementType element, const void* q, const void* k, const void* v, void* out,
                        float* lse) override {
    const int dim = shape.head_dim;
    std::vector<double> probabilities, mean(dim);
    for (int sequence = 0; sequence < sequences.num_sequences(); ++sequence) {
      const size_t first = sequences.offsets[sequence];
      for (size_t i = first; i < static_cast<size_t>(sequences.offsets[sequence + 1]); ++i) {
        for (int h = 0; h < shape.num_q_heads; ++h) {
          const int g = h / shape.group_size();
          const size_t query = (i * shape.num_q_heads + h) * dim;
          probabilities.assign(i - first + 1, 0);
          for (size_t j = first; j <= i; ++j) {
            const size_t key = (j * shape.num_kv_heads + g) * dim;
            double dot = 0;
            for (int c = 0; c < dim; ++c) {
              dot += LoadElement(element, q, query + c) * LoadElement(element, k, key + c);
            }
            probabilities[j - first] = shape.scale * dot;
          }
          lse[i * shape.num_q_heads + h] = static_cast<float>(Softmax(&probabilities));
          std::fill(mean.begin(), mean.end(), 0);
          for (size_t j = first; j <= i; ++j) {
            const size_t value = (j * shape.num_kv_heads + g) * dim;
            for (int c = 0; c < dim; ++c) {
              mean[c] += probabilities[j - first] * LoadElement(element, v, value + c);
            }
          }
          for (int c = 0; c < dim; ++c) StoreElement(element, out, query + c, mean[c]);
        }
      }
    }
  }

  void WindowScores(const AttentionShape& shape, ElementType element, const void* q_window,
                    const float* lse, const void* k, int n, int window, int kernel,
                    ScorePooling pooling, float* scores) override {
    const int candidates = n - window, dim = shape.head_dim, group = shape.group_size();
    std::vector<double> mean(std::max(candidates, 0));
    for (int g = 0; g < shape.num_kv_heads; ++g) {
      for (int j = 0; j < candidates; ++j) {
        const size_t key = (static_cast<size_t>(j) * shape.num_kv_heads + g) * dim;
        double sum = 0;
        for (int i = 0; i < window; ++i) {
          for (int h = g * group; h < (g + 1) * group; ++h) {
            const size_t row = static_cast<size_t>(i) * shape.num_q_heads + h;
            double dot = 0;
            for (int c = 0; c < dim; ++c) {
              dot +=
                  LoadElement(element, q_window, row * dim + c) * LoadElement(element, k, key + c);
            }
            sum += std::exp(shape.scale * dot - lse[row]);
          }
        }
        mean[j] = sum / (static_cast<double>(window) * group);
      }
      for (int j = 0; j < candidates; ++j) {
        double sum = 0, highest = 0;  // edges padded by zeros
        for (int d = -(kernel / 2); d <= kernel / 2; ++d) {
          if (j + d < 0 || j + d >= candidates) continue;
          sum += mean[j + d];
          highest = std::max(highest, mean[j + d]);
        }
        scores[static_cast<size_t>(g) * candidates + j] =
            static_cast<float>(pooling == ScorePooling::kAverage ? sum / kernel : highest);
      }
    }
  }

  void SelectBest(const float* scores, int num_heads, int candidates, int best,
                  int32_t* indices) override {
    std::vector<int32_t> order(candidates);
    for (int g = 0; g < num_heads; ++g) {
      const float* head = scores + static_cast<size_t>(g) * candidates;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [head](int32_t a, int32_t b) { return head[a] > head[b]; });
      std::sort(order.begin(), order.begin() + best);
      std::copy_n(order.begin(), best, indices + static_cast<size_t>(g) * best);
    }
  }

  void WriteTokens(const AttentionShape& shape, ElementType element, const void* k, const void* v,
                   const int32_t* indices, int first_row, int count, PoolView pool,
                   const SegmentView& segment, int first_slot) override {
    for (int head = 0; head < segment.num_kv_heads; ++head) {
      for (int i = 0; i < count; ++i) {
        const size_t row =
            indices != nullptr ? indices[static_cast<size_t>(head) * count + i] : first_row + i;
        WriteSlot(shape, element, k, v, row, pool, segment, segment.first_kv_head + head,
                  first_slot + i);
      }
    }
  }

  void WriteStep(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                 absl::Span<const int> segment_index, absl::Span<const int> slots, const float* k,
                 const float* v, PoolView pool) override {
    for (size_t i = 0; i < items.size(); ++i) {
      const SegmentView& segment = items[i].segments[segment_index[i]];
      for (int head = 0; head < segment.num_kv_heads; ++head) {
        WriteSlot(shape, ElementType::kF32, k, v, i, pool, segment, segment.first_kv_head + head,
                  slots[i]);
      }
    }
  }

  void DecodeAttention(const AttentionShape& shape, absl::Span<const DecodeItem> items,
                       const float* q, PoolView pool, float* out, float* lse) override {
    const int dim = shape.head_dim;
    std::vector<double> probabilities, mean(dim);
    for (size_t row = 0; row < items.size() * shape.num_q_heads; ++row) {
      const LayerView segments = items[row / shape.num_q_heads].segments;
      const int kv_head = static_cast<int>(row % shape.num_q_heads) / shape.group_size();
      // One softmax over the slots of all segments together: nothing to merge.
      probabilities.clear();
      ForEachSlot(segments, kv_head, [&](const SegmentView& segment, int slot) {
        const SlotPlace place = FindSlot(pool, segment, segment.keys, kv_head, slot);
        double dot = 0;
        for (int c = 0; c < dim; ++c) {
          dot += q[row * dim + c] * LoadElement(segment.element, place.area, KeyIndex(place, c));
        }
        probabilities.push_back(shape.scale * dot);
      });
      const double row_lse = Softmax(&probabilities);
      std::fill(mean.begin(), mean.end(), 0);
      size_t next = 0;
      ForEachSlot(segments, kv_head, [&](const SegmentView& segment, int slot) {
        const SlotPlace place = FindSlot(pool, segment, segment.values, kv_head, slot);
        const double probability = probabilities[next++];
        for (int c = 0; c < dim; ++c) {
          mean[c] +=
              probability * LoadElement(segment.element, place.area, ValueIndex(place, c, dim));
        }
      });
      for (int c = 0; c < dim; ++c) out[row * dim + c] = static_cast<float>(mean[c]);
      if (lse != nullptr) lse[row] = static_cast<float>(row_lse);
    }
  }

  void RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
               ElementType element, void* out) override {
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      double squares = 0;
      for (int i = 0; i < width; ++i) squares += double{x[r * width + i]} * x[r * width + i];
      const double inverse = 1 / std::sqrt(squares / width + epsilon);
      for (int i = 0; i < width; ++i) {
        StoreElement(element, out, r * width + i, x[r * width + i] * inverse * weight[i]);
      }
    }
  }

  void SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                      const float* cos, const float* sin, int rows, ElementType out_element,
                      void* q, void* k, void* v) override {
    const int dim = shape.head_dim, half = dim / 2;
    const int rotated = shape.num_q_heads + shape.num_kv_heads;
    const int heads = rotated + shape.num_kv_heads;
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      for (int h = 0; h < heads; ++h) {
        const size_t from = (r * heads + h) * dim;
        void* to = h < shape.num_q_heads ? q : h < rotated ? k : v;
        const size_t to_heads = h < shape.num_q_heads ? shape.num_q_heads : shape.num_kv_heads;
        const int head = h < shape.num_q_heads ? h
                         : h < rotated         ? h - shape.num_q_heads
                                               : h - rotated;
        const size_t base = (r * to_heads + head) * dim;
        for (int c = 0; c < dim; ++c) {
          double value = LoadElement(element, qkv, from + c);
          if (h < rotated) {
            const size_t angle = r * half + c % half;
            const double other = LoadElement(element, qkv, from + (c + half) % dim);
            value = value * cos[angle] + (c < half ? -other : other) * sin[angle];
          }
          StoreElement(out_element, to, base + c, value);
        }
      }
    }
  }

  void SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) override {
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      for (int i = 0; i < width; ++i) {
        const double gate = LoadElement(element, gate_up, r * 2 * width + i);
        const double up = LoadElement(element, gate_up, r * 2 * width + width + i);
        StoreElement(element, out, r * width + i, gate / (1 + std::exp(-gate)) * up);
      }
    }
  }

  void AddResidual(ElementType element, const void* x, size_t count, float* residual) override {
    for (size_t i = 0; i < count; ++i)
      residual[i] += static_cast<float>(LoadElement(element, x, i));
  }

  void Convert(ElementType from, const void* x, size_t count, ElementType to, void* out) override {
    for (size_t i = 0; i < count; ++i) StoreElement(to, out, i, LoadElement(from, x, i));
  }

 private:
  template <typename Visit>
  static void ForEachSlot(LayerView segments, int kv_head, Visit visit) {
    for (const SegmentView& segment : segments) {
      if (kv_head < segment.first_kv_head) continue;
      if (kv_head >= segment.first_kv_head + segment.num_kv_heads) continue;
      for (int slot = 0; slot < segment.num_slots; ++slot) visit(segment, slot);
    }
  }

  /// Copies row `row` of k and v, head `kv_head`, to `slot` of the segment.
  static void WriteSlot(const AttentionShape& shape, ElementType element, const void* k,
                        const void* v, size_t row, PoolView pool, const SegmentView& segment,
                        int kv_head, int slot) {
    const int dim = shape.head_dim;
    const size_t from = (row * shape.num_kv_heads + kv_head) * dim;
    const SlotPlace value_place = FindSlot(pool, segment, segment.values, kv_head, slot);
    for (int c = 0; c < dim; ++c) {
      StoreElement(segment.element, value_place.area, ValueIndex(value_place, c, dim),
                   LoadElement(element, v, from + c));
    }
    if (k == nullptr) return;
    const SlotPlace key_place = FindSlot(pool, segment, segment.keys, kv_head, slot);
    for (int c = 0; c < dim; ++c) {
      StoreElement(segment.element, key_place.area, KeyIndex(key_place, c),
                   LoadElement(element, k, from + c));
    }
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> MakeReferenceBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace ziggurat

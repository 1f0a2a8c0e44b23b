#include "bench/memory/synthetic_prompt.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "attention/backend.h"
#include "attention/bfloat16.h"
#include "block_manager/block_pool.h"
#include "model/resident_memory.h"
#include "model/cache_ops/prompt_layer.h"
#include "scheduler/block_plan.h"
#include "scheduler/sequence_store.h"

namespace ziggurat {
namespace {

/// Uniform in [-1, 1), quick.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  float Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  uint64_t state_;
};

/// Keys, values and the last queries of a layer, as numbers and in the element type.
class Tensors {
 public:
  Tensors(const SyntheticPrompt& prompt, int rows)
      : prompt_(prompt),
        rows_(rows),
        k_(size_t{1} * prompt.tokens * prompt.num_kv_heads * prompt.head_dim),
        v_(k_.size()),
        q_(size_t{1} * prompt.tokens * prompt.num_q_heads * prompt.head_dim),
        lse_(size_t{1} * prompt.tokens * prompt.num_q_heads) {}

  void Fill(int layer) {
    Noise noise(layer + 1);
    const bool lazy = prompt_.lazy_layers && layer % 2 == 1;
    const size_t dim = prompt_.head_dim, kv_row = prompt_.num_kv_heads * dim;
    const size_t q_row = prompt_.num_q_heads * dim;
    for (int t = 0; t < prompt_.tokens; ++t) {
      for (size_t i = 0; i < kv_row; ++i) {
        // The first tokens of a lazy layer are what all queries look at.
        const float sink = lazy && t < 4 ? 2.0f : 0.0f;
        Store(&k_, t * kv_row + i, sink + noise.Next());
        Store(&v_, t * kv_row + i, noise.Next());
      }
    }
    for (int t = prompt_.tokens - rows_; t < prompt_.tokens; ++t) {
      for (size_t i = 0; i < q_row; ++i) {
        Store(&q_, t * q_row + i, (lazy ? 2.0f : 0.0f) + noise.Next());
      }
    }
    FillLse();
  }

  PromptTensors view() {
    return {prompt_.element, q_.data(), k_.data(), v_.data(), q_.data(), lse_.data()};
  }

 private:
  // Space for f32; bf16 uses the first half of each.
  void Store(std::vector<float>* x, size_t i, float value) const {
    if (prompt_.element == ElementType::kF32) {
      (*x)[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(x->data())[i] = FloatToBf16(value);
    }
  }
  float Load(const std::vector<float>& x, size_t i) const {
    return prompt_.element == ElementType::kF32
               ? x[i]
               : Bf16ToFloat(reinterpret_cast<const uint16_t*>(x.data())[i]);
  }

  /// Log-sum-exp of the last rows: all that statistics need of a prompt's attention.
  void FillLse() {
    const size_t dim = prompt_.head_dim;
    const int group = prompt_.num_q_heads / prompt_.num_kv_heads;
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    if (rows_ == 0) return;
#pragma omp parallel for num_threads(prompt_.threads)
    for (int g = 0; g < prompt_.num_kv_heads; ++g) {
      std::vector<float> queries, key(dim);
      for (int r = 0; r < rows_ * group; ++r) {
        const size_t row = prompt_.tokens - rows_ + r / group;
        const size_t head = g * group + r % group;
        for (size_t c = 0; c < dim; ++c) {
          queries.push_back(scale * Load(q_, (row * prompt_.num_q_heads + head) * dim + c));
        }
      }
      std::vector<double> sums(rows_ * group);
      for (int t = 0; t < prompt_.tokens; ++t) {
        for (size_t c = 0; c < dim; ++c) {
          key[c] = Load(k_, (size_t{1} * t * prompt_.num_kv_heads + g) * dim + c);
        }
        for (int r = 0; r < rows_ * group; ++r) {
          if (t > prompt_.tokens - rows_ + r / group) continue;
          float dot = 0;
          const float* query = queries.data() + r * dim;
#pragma omp simd reduction(+ : dot)
          for (size_t c = 0; c < dim; ++c) dot += query[c] * key[c];
          sums[r] += std::exp(static_cast<double>(dot));
        }
      }
      for (int r = 0; r < rows_ * group; ++r) {
        const size_t row = prompt_.tokens - rows_ + r / group;
        lse_[row * prompt_.num_q_heads + g * group + r % group] =
            static_cast<float>(std::log(sums[r]));
      }
    }
  }

  const SyntheticPrompt& prompt_;
  int rows_;
  std::vector<float> k_, v_, q_, lse_;
};

}  // namespace

absl::StatusOr<HeldMemory> MeasureHeldMemory(const SyntheticPrompt& prompt) {
  auto policy = ParsePolicy(prompt.policy, prompt.resources);
  if (!policy.ok()) return policy.status();
  ModelShape model;
  model.num_layers = prompt.num_layers;
  model.num_q_heads = prompt.num_q_heads;
  model.num_kv_heads = prompt.num_kv_heads;
  model.head_dim = prompt.head_dim;
  model.element = prompt.element;
  const CacheGeometry geometry{
      prompt.num_layers, prompt.num_kv_heads, prompt.head_dim,
      CacheGeometry::DefaultBlockBytes(prompt.num_kv_heads, prompt.head_dim)};
  auto plan = PlanBlocks(**policy, model, geometry, {prompt.tokens, 1});
  if (!plan.ok()) return plan.status();
  if (plan->plan.decide != DecideAt::kLayer || plan->plan.needs.window_rows < 0) {
    return absl::InvalidArgumentError(
        "policies that need the hidden states, or all queries, of a prompt are not measured here");
  }
  auto level = DetectCpuLevel();
  if (!level.ok()) return level.status();
  auto backend = MakeCpuBackend(*level, prompt.threads);
  if (!backend.ok()) return backend.status();
  auto pool = BlockPool::Create(plan->total_blocks, geometry.block_bytes);
  if (!pool.ok()) return pool.status();

  const AttentionShape shape{prompt.num_q_heads, prompt.num_kv_heads, prompt.head_dim,
                             1 / std::sqrt(static_cast<float>(prompt.head_dim))};
  PromptBuffers buffers;
  std::vector<std::byte> room(
      LayPromptNeeds(model, prompt.tokens, plan->plan.needs, nullptr, &buffers));
  LayPromptNeeds(model, prompt.tokens, plan->plan.needs, room.data(), &buffers);
  Tensors tensors(prompt, buffers.window_rows);
  ReservationLedger ledger(prompt.num_layers);
  std::optional<SequenceStore> store;
  store.emplace(*plan, pool->get(), &ledger);
  PromptLayers layers(backend->get(), shape, prompt.tokens, &plan->plan, buffers);
  HeldMemory held;
  held.block_bytes = geometry.block_bytes;
  held.planned_blocks = plan->total_blocks;
  held.pool_blocks = (*pool)->num_blocks();
  tensors.Fill(0);
  const size_t before = ResidentBytes();
  for (int l = 0; l < prompt.num_layers; ++l) {
    if (l > 0) tensors.Fill(l);
    const PromptTensors at = tensors.view();
    layers.Prepare(l, at);
    const LayerMeasured measured = layers.Measure(l, at);
    LayerWrite write;
    if (absl::Status status = store->FillLayer(l, measured, &write); !status.ok()) return status;
    if (write.view.empty()) continue;
    if (auto status = layers.Write(at, (*pool)->view(), write); !status.ok()) return status;
  }
  held.resident_bytes = ResidentBytes() - before;
  held.blocks = (*pool)->used_blocks();
  held.high_water_blocks = (*pool)->high_water_blocks();
  for (int l = 0; l < prompt.num_layers; ++l) {
    held.live_bytes += store->cache().layer(l).occupancy().owned_live_bytes;
  }
  store.reset();
  held.free_blocks_after_release = (*pool)->free_blocks();
  return held;
}

}  // namespace ziggurat

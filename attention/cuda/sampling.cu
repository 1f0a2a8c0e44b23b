// Sampling: one block for each sequence.
#include <cfloat>

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/sampling.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = kCutThreads;
using Mass = unsigned long long;

/// A weight of 1, which is the best token's. 2^40 of a vocabulary of 2^20 tokens fit 64 bits.
constexpr float kUnitMass = 0x1p40f;

/// Plus infinity counts as the largest float, a NaN as minus infinity.
__device__ float Clamped(float logit) {
  if (logit != logit) return -INFINITY;
  return logit > FLT_MAX ? FLT_MAX : logit;
}

struct SamplerMemory {
  CutMemory cut;
  Mass scratch[kThreads / kWarp];
  float maxima[kThreads / kWarp];
  int32_t ids[kThreads / kWarp];
  Mass before;
  int32_t chosen;
  int32_t num_top;
  int32_t top[kMaxLogprobs];
};

/// One sequence's logits, and what is left of them.
struct BlockSampler {
  float* logits;
  int vocab_size;
  const SamplingRequest& request;
  SamplerMemory* memory;
  const int thread = static_cast<int>(threadIdx.x);

  /// The lowest id of the largest logit, and that logit; -infinity if there is none. All threads.
  __device__ int Best(float* largest) {
    float best = -INFINITY;
    int id = INT32_MAX;
    for (int i = thread; i < vocab_size; i += kThreads) {
      const float logit = Clamped(logits[i]);
      if (logit > best) best = logit, id = i;
    }
    BestOfBlock(&best, &id);
    *largest = best;
    return id;
  }

  /// A token's weight relative to the best one's. 0 below e^-87, as in model/sampling.
  __device__ float Weight(float logit, float best, float temperature) const {
    const float exponent = (Clamped(logit) - best) / temperature;
    return exponent > -87 ? expf(exponent) : 0;
  }
  __device__ Mass MassOf(float weight) const { return static_cast<Mass>(weight * kUnitMass); }

  // ---- Logprobs: of the model's own distribution ------------------------------------------------

  /// log softmax of the token that stands at `logit`.
  __device__ static float Logprob(float logit, float best, double log_sum) {
    return static_cast<float>(static_cast<double>(Clamped(logit)) - static_cast<double>(best) -
                              log_sum);
  }

  /// The best tokens in falling order.
  __device__ void FillTop(float best, double log_sum, SampledRecord* record) {
    const auto counts = [&](int i) { return Mass{Clamped(logits[i]) != -INFINITY}; };
    const Mass live = Total(counts);
    const int wanted = static_cast<int>(min(live, static_cast<Mass>(request.logprobs)));
    if (wanted == 0) return;
    const Selection top = Select(wanted, counts);
    if (thread == 0) memory->num_top = 0;
    __syncthreads();
    for (int i = thread; i < vocab_size; i += kThreads) {
      if (Keeps(top, i)) memory->top[atomicAdd(&memory->num_top, 1)] = i;
    }
    __syncthreads();
    if (thread == 0) record->num_top = wanted;
    if (thread < wanted) {
      const int id = memory->top[thread];
      int rank = 0;
      for (int n = 0; n < wanted; ++n) {
        const int other = memory->top[n];
        rank += Key(other) > Key(id) || (Key(other) == Key(id) && other < id);
      }
      record->top_ids[rank] = id;
      record->top_logprobs[rank] = Logprob(logits[id], best, log_sum);
    }
    __syncthreads();  // what follows changes logits
  }

  // ---- Penalties --------------------------------------------------------------------------------

  __device__ void Penalize() {
    for (int i = thread; i < request.num_forbidden; i += kThreads) {
      logits[request.forbidden[i]] = -INFINITY;
    }
    __syncthreads();
    for (int i = thread; i < request.num_seen; i += kThreads) {
      SeenToken& seen = request.seen[i];
      float& logit = logits[seen.id];
      seen.raw_logit = logit;
      const float repetition = request.repetition_penalty;
      logit = logit > 0 ? logit / repetition : logit * repetition;
      if (seen.output_count == 0) continue;
      logit -= request.presence_penalty +
               request.frequency_penalty * static_cast<float>(seen.output_count);
    }
    __syncthreads();
  }

  /// What a token's logit was.
  __device__ float RawLogit(int id) const {
    for (int i = 0; i < request.num_seen; ++i) {
      if (request.seen[i].id == id) return request.seen[i].raw_logit;
    }
    return logits[id];
  }

  // ---- The draw ---------------------------------------------------------------------------------

  /// The sum of mass(i) over all tokens.
  template <class MassOfToken>
  __device__ Mass Total(MassOfToken mass) {
    Mass own = 0;
    for (int i = thread; i < vocab_size; i += kThreads) own += mass(i);
    return BlockSum(own, memory->scratch);
  }

  /// The token at which the sum of mass(i), in rising order of ids over those that `takes(i)`,
  /// exceeds `left`. There is one.
  template <class Takes, class MassOfToken>
  __device__ int WalkIds(Mass left, Takes takes, MassOfToken mass) {
    if (thread == 0) memory->before = 0;
    if (thread == 0) memory->chosen = -1;
    for (int base = 0; base < vocab_size; base += kThreads) {
      __syncthreads();
      if (memory->chosen >= 0) break;
      const int i = base + thread;
      const Mass own = i < vocab_size && takes(i) ? mass(i) : 0;
      const Mass until = memory->before + InclusiveSum(own, memory->scratch);
      if (until > left && until - own <= left) memory->chosen = i;
      __syncthreads();
      if (thread == kThreads - 1) memory->before = until;
    }
    __syncthreads();
    return memory->chosen;
  }

  /// The best tokens: those above a cut, and of those that equal it the ones up to `last`.
  struct Selection {
    uint32_t key;
    int last;
  };
  __device__ uint32_t Key(int i) const { return RankedKey(Clamped(logits[i])); }
  __device__ bool Keeps(const Selection& s, int i) const {
    return Key(i) > s.key || (Key(i) == s.key && i <= s.last);
  }
  /// The fewest best tokens, in falling order of logits and rising order of ids, whose mass(i) adds
  /// up to `target` or more.
  template <class MassOfToken>
  __device__ Selection Select(Mass target, MassOfToken mass) {
    const auto key = [&](int i) { return Key(i); };
    const Cut cut = FindCut(vocab_size, target, key, mass, &memory->cut);
    const auto at_cut = [&](int i) { return Key(i) == cut.key; };
    return {cut.key, WalkIds(target - cut.above - 1, at_cut, mass)};
  }
  /// All but these become -infinity.
  __device__ void Keep(const Selection& selection) {
    __syncthreads();
    for (int i = thread; i < vocab_size; i += kThreads) {
      if (!Keeps(selection, i)) logits[i] = -INFINITY;
    }
    __syncthreads();
  }

  __device__ int Draw(float best, float temperature) {
    const auto mass = [&](int i) { return MassOf(Weight(logits[i], best, temperature)); };
    const bool top_k = request.top_k > 0 && request.top_k < vocab_size;
    if (top_k) {
      const auto counts = [&](int i) { return Mass{Clamped(logits[i]) != -INFINITY}; };
      const Mass live = Total(counts);
      if (live > static_cast<Mass>(request.top_k)) Keep(Select(request.top_k, counts));
    }
    if (request.top_p < 1) {
      const double share = static_cast<double>(request.top_p) * static_cast<double>(Total(mass));
      // The fewest tokens whose share reaches it, at least one.
      const Mass wanted = static_cast<Mass>(ceil(share));
      Keep(Select(wanted > 0 ? wanted : 1, mass));
    }
    const Mass least = MassOf(request.min_p);
    const auto left = [&](int i) { return mass(i) >= least ? mass(i) : Mass{0}; };
    const Mass total = Total(left);
    const Mass drawn = static_cast<Mass>(request.uniform * static_cast<double>(total));
    const Mass at = drawn < total ? drawn : total - 1;
    if (!top_k)
      return WalkIds(
          at, [](int) { return true; }, left);
    // With top-k the tokens stand in falling order of logits.
    return Select(at + 1, left).last;
  }

  /// The draw where no logit says anything: the lowest token that is not forbidden.
  __device__ int LowestAllowed() const {
    for (int id = 0; id < vocab_size; ++id) {
      bool is_forbidden = false;
      for (int i = 0; i < request.num_forbidden; ++i) {
        is_forbidden = is_forbidden || request.forbidden[i] == id;
      }
      if (!is_forbidden) return id;
    }
    return 0;
  }

 private:
  __device__ void BestOfBlock(float* best, int* id) {
    const auto take = [&](float other, int other_id) {
      if (other > *best || (other == *best && other_id < *id)) *best = other, *id = other_id;
    };
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, *best, lanes);
      take(other, __shfl_xor_sync(kAllLanes, *id, lanes));
    }
    __syncthreads();
    if (LaneOfThread() == 0) memory->maxima[WarpOfThread()] = *best;
    if (LaneOfThread() == 0) memory->ids[WarpOfThread()] = *id;
    __syncthreads();
    for (int w = 0; w < kThreads / kWarp; ++w) take(memory->maxima[w], memory->ids[w]);
  }
};

__global__ void __launch_bounds__(kThreads)
    Sample(float* all_logits, int vocab_size, const SamplingRequest* requests,
           SampledRecord* records) {
  __shared__ SamplerMemory memory;
  const SamplingRequest& request = requests[blockIdx.x];
  SampledRecord* record = records + blockIdx.x;
  BlockSampler sampler{all_logits + size_t{blockIdx.x} * vocab_size, vocab_size, request, &memory};
  const float* logits = sampler.logits;
  const bool is_first = threadIdx.x == 0;
  const bool wants_logprobs = request.logprobs >= 0;
  if (is_first) *record = SampledRecord{};
  __syncthreads();

  float raw_best = -INFINITY;
  double log_sum = 0;
  if (wants_logprobs) {
    sampler.Best(&raw_best);
    const Mass total = sampler.Total([&](int i) {
      return raw_best == -INFINITY ? Mass{0}
                                   : sampler.MassOf(sampler.Weight(logits[i], raw_best, 1));
    });
    log_sum = log(static_cast<double>(total) / static_cast<double>(kUnitMass));
    if (raw_best != -INFINITY) sampler.FillTop(raw_best, log_sum, record);
  }
  float best = -INFINITY;
  sampler.Penalize();
  int token = sampler.Best(&best);
  if (best == -INFINITY) {
    token = sampler.LowestAllowed();
  } else if (request.temperature != 0) {
    token = sampler.Draw(best, request.temperature);
  }
  if (!is_first) return;
  record->token_id = token;
  if (!wants_logprobs) return;
  record->logprob = raw_best == -INFINITY
                        ? -INFINITY
                        : sampler.Logprob(sampler.RawLogit(token), raw_best, log_sum);
}

}  // namespace

// ---- Launchers ----------------------------------------------------------------------------------

void LaunchSample(float* logits, int vocab_size, const SamplingRequest* requests, int count,
                  SampledRecord* records, cudaStream_t stream) {
  if (count == 0) return;
  Launch(Sample, dim3{static_cast<unsigned>(count)}, dim3{kThreads}, 0, stream, logits, vocab_size,
         requests, records);
}

}  // namespace ziggurat::cuda

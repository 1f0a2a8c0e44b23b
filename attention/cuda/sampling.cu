// Sampling: one block for each sequence, which goes through its logits a few times: nothing is
// sorted.
#include <cfloat>

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/sampling.h"

namespace ziggurat::cuda {

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
using Mass = unsigned long long;

/// A weight of 1, which is the best token's. 2^40 of a vocabulary of 2^20 tokens fit 64 bits.
constexpr float kUnitMass = 0x1p40f;

/// Plus infinity counts as the largest float, a NaN as minus infinity.
__device__ float Clamped(float logit) {
  if (logit != logit) return -INFINITY;
  return logit > FLT_MAX ? FLT_MAX : logit;
}

/// The best tokens: those above a key, and of those that equal it the ones up to `last`.
struct Selection {
  uint32_t key;
  int last;

  __device__ bool Keeps(int id, float logit) const {
    const uint32_t own = RankedKey(logit);
    return own > key || (own == key && id <= last);
  }
};

/// A token in the bucket in which a selection ends.
struct BorderToken {
  Mass mass;
  uint32_t key;
  int32_t id;

  __device__ bool IsBefore(const BorderToken& other) const {
    return key > other.key || (key == other.key && id < other.id);
  }
};

/// One for every thread.
constexpr int kBuckets = kThreads, kBorderTokens = kThreads;

struct SamplerMemory {
  Mass scratch[kWarps];
  float maxima[kWarps], minima[kWarps];
  int32_t ids[kWarps];
  float best_of_threads[kThreads];
  int32_t num_top;
  int32_t top[kMaxLogprobs];
  int32_t place;
  // Of a selection.
  union {
    WideSum buckets[kBuckets];
    BorderToken border[kBorderTokens];
    CutMemory cut;
  };
  int32_t num_border;
  int32_t found_bucket;
  Mass above;
  Selection selection;
  int32_t chosen;
};

/// What one pass over the logits finds.
struct Extremes {
  float best = -INFINITY;   ///< no more where no token is live, which is to have a logit above it
  int best_id = INT32_MAX;  ///< the lowest id of the best
  float least = INFINITY;   ///< of the live ones
};

/// One sequence's logits. What has barriers is called by all threads.
struct BlockSampler {
  float* logits;
  int vocab_size;
  const SamplingRequest& request;
  SamplerMemory* memory;
  const int thread = static_cast<int>(threadIdx.x);

  /// visit(id, logit) of ids first + step n below end; a few loads are under way at once.
  template <class Visit>
  __device__ void ForEach(int first, int end, int step, Visit visit) const {
    constexpr int kAtOnce = 4;
    for (int base = first; base < end; base += kAtOnce * step) {
      float loaded[kAtOnce];
      ZIGGURAT_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const int id = base + n * step;
        loaded[n] = id < end ? Clamped(logits[id]) : -INFINITY;
      }
      ZIGGURAT_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        if (base + n * step < end) visit(base + n * step, loaded[n]);
      }
    }
  }
  template <class Visit>
  __device__ void ForEachToken(Visit visit) const {
    ForEach(thread, vocab_size, kThreads, visit);
  }

  __device__ Extremes FindExtremes() {
    Extremes found;
    ForEachToken([&](int id, float logit) {
      if (logit > found.best) found.best = logit, found.best_id = id;
      if (logit != -INFINITY) found.least = fminf(found.least, logit);
    });
    memory->best_of_threads[thread] = found.best;
    return OfBlock(found);
  }

  /// A token's weight relative to the best one's. 0 where its mass would be, below e^-27.
  __device__ float Weight(float logit, float best, float temperature) const {
    const float exponent = (logit - best) / temperature;
    return exponent > -28 ? expf(exponent) : 0;
  }
  __device__ Mass MassOf(float weight) const { return static_cast<Mass>(weight * kUnitMass); }

  // ---- Logprobs: of the model's own distribution ------------------------------------------------

  /// log softmax of the token that stands at `logit`.
  __device__ static float Logprob(float logit, float best, double log_sum) {
    return static_cast<float>(static_cast<double>(Clamped(logit)) - static_cast<double>(best) -
                              log_sum);
  }

  /// The best tokens in falling order.
  __device__ void FillTop(const Extremes& found, double log_sum, SampledRecord* record) {
    if (request.logprobs == 0) return;
    const Selection top = SelectCount(request.logprobs, found);
    if (thread == 0) memory->num_top = 0;
    __syncthreads();
    ForEachToken([&](int id, float logit) {
      if (top.Keeps(id, logit)) memory->top[atomicAdd(&memory->num_top, 1)] = id;
    });
    __syncthreads();
    const int count = memory->num_top;
    if (thread == 0) record->num_top = count;
    if (thread < count) {
      const int id = memory->top[thread];
      const BorderToken own = {0, RankedKey(Clamped(logits[id])), id};
      int rank = 0;
      for (int n = 0; n < count; ++n) {
        const int other = memory->top[n];
        rank += BorderToken{0, RankedKey(Clamped(logits[other])), other}.IsBefore(own);
      }
      record->top_ids[rank] = id;
      record->top_logprobs[rank] = Logprob(logits[id], found.best, log_sum);
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

  /// Where a token stands among those seen; num_seen where it does not.
  __device__ int PlaceAmongSeen(int id) {
    if (thread == 0) memory->place = request.num_seen;
    __syncthreads();
    for (int i = thread; i < request.num_seen; i += kThreads) {
      if (request.seen[i].id == id) memory->place = i;
    }
    __syncthreads();
    return memory->place;
  }

  // ---- Selections -------------------------------------------------------------------------------

  /// The sum of mass(id, logit) over all tokens.
  template <class MassOfToken>
  __device__ Mass Total(MassOfToken mass) {
    Mass own = 0;
    ForEachToken([&](int id, float logit) { own += mass(id, logit); });
    return BlockSum(own, memory->scratch);
  }

  /// The fewest best tokens, in falling order of logits and rising order of ids, whose
  /// mass(id, logit) adds up to `target` (at least 1) or more. Most tokens that have mass should be
  /// no less than `least`, and none is above `best`: it is fast where they spread between both.
  template <class MassOfToken>
  __device__ Selection Select(Mass target, float least, float best, MassOfToken mass) {
    // Equal parts of that range, each a bucket. What is no number goes to the lowest.
    const float scale = (kBuckets - 1) / (best - least);
    const auto bucket_of = [&](float logit) {
      const float place = (logit - least) * scale;
      return place > 0 ? static_cast<int>(fminf(place, kBuckets - 1)) : 0;
    };
    memory->buckets[thread] = {};
    if (thread == 0) memory->num_border = 0;
    __syncthreads();
    ForEachToken([&](int id, float logit) {
      const Mass own = mass(id, logit);
      if (own != 0) memory->buckets[bucket_of(logit)].Add(own);
    });
    __syncthreads();
    const int bucket = kBuckets - 1 - thread;  // the greatest first
    const Mass own = memory->buckets[bucket].Get();
    const Mass reached = InclusiveSum(own, memory->scratch);
    if (reached >= target && reached - own < target) {
      memory->found_bucket = bucket;
      memory->above = reached - own;
    }
    __syncthreads();
    const int found = memory->found_bucket;
    const Mass left = target - memory->above;

    // The bucket's tokens.
    const auto mass_there = [&](int id, float logit) {
      return bucket_of(logit) == found ? mass(id, logit) : Mass{0};
    };
    ForEachToken([&](int id, float logit) {
      const Mass there = mass_there(id, logit);
      if (there == 0) return;
      const int place = atomicAdd(&memory->num_border, 1);
      if (place < kBorderTokens) memory->border[place] = {there, RankedKey(logit), id};
    });
    __syncthreads();
    const int count = memory->num_border;
    if (count > kBorderTokens) return SelectByKeys(left, mass_there);
    if (thread < count) {
      const BorderToken& own_token = memory->border[thread];
      Mass before = 0;
      for (int n = 0; n < count; ++n) {
        if (memory->border[n].IsBefore(own_token)) before += memory->border[n].mass;
      }
      if (before < left && before + own_token.mass >= left) {
        memory->selection = {own_token.key, own_token.id};
      }
    }
    __syncthreads();
    return memory->selection;
  }

  /// The same where tokens do not spread: however many are equal.
  template <class MassOfToken>
  __device__ Selection SelectByKeys(Mass target, MassOfToken mass) {
    const auto key = [&](int id) { return RankedKey(Clamped(logits[id])); };
    const Cut cut = FindCut(
        vocab_size, target, key, [&](int id) { return mass(id, Clamped(logits[id])); },
        &memory->cut);
    const auto at_cut = [&](int id, float logit) {
      return RankedKey(logit) == cut.key ? mass(id, logit) : Mass{0};
    };
    return {cut.key, WalkIds(target - cut.above - 1, at_cut)};
  }

  /// The `count` best tokens; all live ones where these are no more.
  __device__ Selection SelectCount(int count, const Extremes& found) {
    const auto is_live = [](float logit) { return Mass{logit != -INFINITY}; };
    const auto wanted = static_cast<Mass>(count);
    const auto of_thread = [&](int t) { return memory->best_of_threads[t]; };
    uint32_t bound = RankedKey(found.least);
    if (BlockSum(is_live(of_thread(thread)), memory->scratch) >= wanted) {
      // What so many threads have as their best; few more tokens reach it.
      bound = FindCut(
                  kThreads, wanted, [&](int t) { return RankedKey(of_thread(t)); },
                  [&](int t) { return is_live(of_thread(t)); }, &memory->cut)
                  .key;
    } else if (Total([&](int, float logit) { return is_live(logit); }) <= wanted) {
      return {bound, INT32_MAX};
    }
    const auto counts = [&](int, float logit) { return Mass{RankedKey(logit) >= bound}; };
    return Select(wanted, RankedNumber(bound), found.best, counts);
  }

  /// The token at which the sum of mass(id, logit), in rising order of ids, exceeds `left`. There
  /// is one.
  template <class MassOfToken>
  __device__ int WalkIds(Mass left, MassOfToken mass) {
    // A stretch of ids for each warp, and then the stretch in which it is.
    const int length = (vocab_size + kWarps - 1) / kWarps;
    const auto end_of = [&](int stretch) { return min(vocab_size, (stretch + 1) * length); };
    const int warp = WarpOfThread();
    Mass own = 0;
    ForEach(warp * length + LaneOfThread(), end_of(warp), kWarp,
            [&](int id, float logit) { own += mass(id, logit); });
    own = WarpSum(own);
    __syncthreads();
    if (LaneOfThread() == 0) memory->scratch[warp] = own;
    __syncthreads();
    int stretch = 0;
    for (; stretch < kWarps - 1 && memory->scratch[stretch] <= left; ++stretch) {
      left -= memory->scratch[stretch];
    }
    for (int base = stretch * length; base < vocab_size; base += kThreads) {
      const int id = base + thread;
      const Mass here = id < end_of(stretch) ? mass(id, Clamped(logits[id])) : 0;
      __syncthreads();  // scratch was read
      const Mass until = InclusiveSum(here, memory->scratch);
      if (until > left && until - here <= left) memory->chosen = id;
      if (thread == kThreads - 1) memory->above = until;
      __syncthreads();
      if (memory->above > left) break;
      left -= memory->above;
    }
    return memory->chosen;
  }

  // ---- The draw ---------------------------------------------------------------------------------

  __device__ int Draw(const Extremes& found, float temperature) {
    Selection kept = {RankedKey(found.least), INT32_MAX};
    const bool top_k = request.top_k > 0 && request.top_k < vocab_size;
    if (top_k) kept = SelectCount(request.top_k, found);
    const auto mass = [&](int id, float logit) {
      return kept.Keeps(id, logit) ? MassOf(Weight(logit, found.best, temperature)) : Mass{0};
    };
    if (request.top_p < 1) {
      const Mass all = Total(mass);
      const double share = static_cast<double>(request.top_p) * static_cast<double>(all);
      // The fewest tokens whose share reaches it, at least one.
      const Mass wanted = max(static_cast<Mass>(ceil(share)), Mass{1});
      // Tokens that have no more than this are not needed, all of them together.
      const Mass negligible = (all - wanted) / vocab_size;
      const auto counted = [&](int id, float logit) {
        const Mass own = mass(id, logit);
        return own > negligible ? own : Mass{0};
      };
      const float share_of_best = static_cast<float>(negligible + 1) / kUnitMass;
      const float least = found.best + temperature * logf(share_of_best);
      kept = Select(wanted, fmaxf(least, RankedNumber(kept.key)), found.best, counted);
    }
    const Mass enough = MassOf(request.min_p);
    const auto left = [&](int id, float logit) {
      const Mass own = mass(id, logit);
      return own >= enough ? own : Mass{0};
    };
    const Mass total = Total(left);
    const Mass drawn = static_cast<Mass>(request.uniform * static_cast<double>(total));
    const Mass at = drawn < total ? drawn : total - 1;
    // With top-k the tokens stand in falling order of logits.
    return top_k ? Select(at + 1, RankedNumber(kept.key), found.best, left).last
                 : WalkIds(at, left);
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
  __device__ Extremes OfBlock(Extremes x) {
    const auto join = [&](float best, int id, float least) {
      if (best > x.best || (best == x.best && id < x.best_id)) x.best = best, x.best_id = id;
      x.least = fminf(x.least, least);
    };
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      const float best = __shfl_xor_sync(kAllLanes, x.best, lanes);
      const int id = __shfl_xor_sync(kAllLanes, x.best_id, lanes);
      join(best, id, __shfl_xor_sync(kAllLanes, x.least, lanes));
    }
    __syncthreads();
    if (LaneOfThread() == 0) {
      memory->maxima[WarpOfThread()] = x.best;
      memory->ids[WarpOfThread()] = x.best_id;
      memory->minima[WarpOfThread()] = x.least;
    }
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) join(memory->maxima[w], memory->ids[w], memory->minima[w]);
    return x;
  }
};

__global__ void __launch_bounds__(kThreads)
    Sample(float* all_logits, int vocab_size, const SamplingRequest* requests,
           SampledRecord* records) {
  ZIGGURAT_SHARED(SamplerMemory, memory);
  const SamplingRequest& request = requests[blockIdx.x];
  SampledRecord* record = records + blockIdx.x;
  BlockSampler sampler{all_logits + size_t{blockIdx.x} * vocab_size, vocab_size, request, &memory};
  const bool is_first = threadIdx.x == 0;
  const bool wants_logprobs = request.logprobs >= 0;
  if (is_first) *record = SampledRecord{};
  __syncthreads();

  Extremes raw;
  double log_sum = 0;
  if (wants_logprobs) {
    raw = sampler.FindExtremes();
    if (raw.best != -INFINITY) {
      const Mass total = sampler.Total(
          [&](int, float logit) { return sampler.MassOf(sampler.Weight(logit, raw.best, 1)); });
      log_sum = log(static_cast<double>(total) / static_cast<double>(kUnitMass));
      sampler.FillTop(raw, log_sum, record);
    }
  }
  sampler.Penalize();
  const Extremes found = sampler.FindExtremes();
  int token = found.best_id;
  if (found.best == -INFINITY) {
    token = sampler.LowestAllowed();
  } else if (request.temperature != 0) {
    token = sampler.Draw(found, request.temperature);
  }
  const int place = sampler.PlaceAmongSeen(token);
  if (!is_first) return;
  record->token_id = token;
  record->is_arbitrary = found.best == -INFINITY;
  const bool was_seen = place < request.num_seen;
  if (wants_logprobs) {
    const float raw_logit = was_seen ? request.seen[place].raw_logit : sampler.logits[token];
    record->logprob =
        raw.best == -INFINITY ? -INFINITY : sampler.Logprob(raw_logit, raw.best, log_sum);
  }
  if (request.seen == nullptr) return;
  if (!was_seen) request.seen[place] = {token, 0, 0};
  ++request.seen[place].output_count;
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

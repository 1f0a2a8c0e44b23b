#include "server/cli/bench/load/cache_sampler.h"

#include <utility>

#include "absl/time/time.h"
#include "server/cli/call_status.h"

namespace ziggurat::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr absl::Duration kPatience = absl::Seconds(2);

}  // namespace

CacheSampler::CacheSampler(v1::Ziggurat::StubInterface& stub, Clock::time_point start,
                           std::chrono::milliseconds period)
    : stub_(stub), start_(start), period_(period), thread_([this] { Run(); }) {}

CacheSampler::~CacheSampler() { Stop(); }

CacheSamples CacheSampler::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  return std::move(samples_);
}

void CacheSampler::Run() {
  Clock::time_point next = Clock::now();
  for (bool is_last = false; !is_last;) {
    {
      std::unique_lock lock(mutex_);
      is_last = wake_.wait_until(lock, next, [this] { return stopping_; });
    }
    Look();
    // Looks that a slow answer has made late are left out.
    for (next += period_; next < Clock::now();) next += period_;
  }
}

void CacheSampler::Look() {
  grpc::ClientContext context;
  SetDeadline(context, kPatience);
  v1::GetCacheRequest request;
  request.set_totals_only(true);
  v1::GetCacheResponse cache;
  if (!stub_.GetCache(&context, request, &cache).ok()) {
    ++samples_.missed;
    return;
  }
  samples_.block_bytes = cache.block_bytes();
  samples_.total_blocks = cache.total_blocks();
  samples_.samples.push_back(
      {.seconds = std::chrono::duration<double>(Clock::now() - start_).count(),
       .used_blocks = cache.used_blocks(),
       .reserved_blocks = cache.reserved_blocks(),
       .running = cache.running(),
       .waiting = cache.waiting()});
}

}  // namespace ziggurat::bench

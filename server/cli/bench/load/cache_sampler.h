// How full the cache of the daemon is, looked at again and again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat::bench {

struct CacheSample {
  double seconds = 0;  ///< after the start of the run
  uint64_t used_blocks = 0;
  uint64_t reserved_blocks = 0;
  uint32_t running = 0;
  uint32_t waiting = 0;
};

struct CacheSamples {
  uint64_t block_bytes = 0;
  uint64_t total_blocks = 0;
  std::vector<CacheSample> samples = {};
  int64_t missed = 0;  ///< looks that brought no answer
};

/// Looks from construction until Stop, every `period`, in a thread of its own.
class CacheSampler {
 public:
  CacheSampler(v1::Ziggurat::StubInterface& stub, std::chrono::steady_clock::time_point start,
               std::chrono::milliseconds period);
  ~CacheSampler();
  CacheSampler(const CacheSampler&) = delete;
  CacheSampler& operator=(const CacheSampler&) = delete;

  /// Ends it with a last look, and hands over what was seen. Once.
  CacheSamples Stop();

 private:
  void Run();
  void Look();

  v1::Ziggurat::StubInterface& stub_;
  const std::chrono::steady_clock::time_point start_;
  const std::chrono::milliseconds period_;
  CacheSamples samples_;  // of the thread, until it has ended
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ziggurat::bench

// The memory that a backend's pointers point to, and what the host has to do with it.
//
// Backends of the CPU work in the host's memory, and the functions here are what they look like
// there. A GPU's backend has memory of its own: what is selected and copied stays on the device,
// and only `Download` waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "block_manager/cache_format.h"

namespace ziggurat {

class BackendMemory {
 public:
  virtual ~BackendMemory() = default;

  /// Whether it is the host's memory.
  virtual bool is_hosts() const { return true; }

  /// Memory for what is needed for a moment, aligned to 64 bytes: the caller's until the next call
  /// of Lend, of whomever. CHECKs that a device's is large enough.
  virtual void* Lend(size_t bytes);

  /// From the host's memory, which may change at once afterwards, and into it; Download waits for
  /// everything that was asked of the backend before.
  virtual void Upload(const void* host, size_t bytes, void* to);
  virtual void Download(const void* from, size_t bytes, void* host) const;

  /// Row r of `row_bytes` bytes goes from `from + r * from_stride` to `to + r * to_stride`.
  virtual void CopyRows(const void* from, size_t from_stride, size_t row_bytes, size_t rows,
                        void* to, size_t to_stride);
  void Copy(const void* from, size_t bytes, void* to) {
    CopyRows(from, bytes, bytes, 1, to, bytes);
  }

  /// The tokens that stay: of each head those that were selected, and the last ones.
  ///   best_of  of head h the `best` from best_of + h * stride on
  ///   kept     [heads, best + recent]: behind the selected ones first_recent, first_recent + 1,
  ///   ...
  virtual void KeepSelected(const int32_t* best_of, size_t stride, int heads, int best,
                            int first_recent, int recent, int32_t* kept);
  /// The numbers below n that are not in a list.
  ///   chosen  [heads, count] ascending;   rest  [heads, n - count] ascending
  virtual void Complement(const int32_t* chosen, int heads, int count, int n, int32_t* rest);

 private:
  std::vector<std::byte> lent_;
};

}  // namespace ziggurat

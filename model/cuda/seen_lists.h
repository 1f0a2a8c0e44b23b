// The tokens that penalties concern, of each sequence, on the device: a list is sent when a
// sequence draws its first token there, and from then on the kernel that draws counts on by itself
// (SamplingRequest::seen).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/cuda/device.h"
#include "attention/cuda/extents.h"
#include "attention/cuda/sampling.h"
#include "model/cuda/memory_part.h"
#include "model/sampling/sampling.h"

namespace ziggurat::cuda {

/// A sequence that ends says nothing: when there is no room for a new list, those that were asked
/// for the longest time ago are dropped, but for this step's and the one's before, and sent again
/// if they are asked for after all. Not thread-safe.
class SeenLists {
 public:
  /// For so many sequences at once.
  static std::vector<MemoryPart> Parts(int rows, int vocab_size);
  /// `stream` outlives it. RESOURCE_EXHAUSTED names the part.
  static absl::StatusOr<std::unique_ptr<SeenLists>> Create(Stream* stream, int rows,
                                                           int vocab_size);

  /// What came of the step before is known on the host.
  void BeginStep();
  /// Of a sequence that draws a token in this step by `sampler`, which must penalize. Ids are
  /// unique (DecodeInput::sequence); asked for once a step. Null where there is no room for it, or
  /// too much is sent in this step.
  SeenToken* Of(uint64_t sequence, const Sampler& sampler);

 private:
  struct List {
    uint64_t sequence = 0;
    uint32_t first = 0;  ///< of its tokens, in memory_
    int capacity = 0;
    int num_taken = 0;  ///< Sampler::num_taken() when the device has what it says
    uint64_t step = 0;  ///< in which it was asked for last
  };
  using Lists = std::list<List>;

  SeenLists(Stream* stream, uint32_t capacity)
      : stream_(stream), capacity_(capacity), extents_(0, capacity) {}

  /// Room for `count` tokens, and one more at least. False where there is none.
  bool MakeRoom(int count, List* list);
  /// An extent of so many, for which others may be dropped. False where there is none.
  bool Allocate(uint32_t tokens, List* list);
  bool Send(const Sampler& sampler, List* list);
  void Drop(Lists::iterator list);

  Stream* stream_;
  const uint32_t capacity_;
  DeviceMemory memory_, pinned_;  ///< SeenToken; what is sent in a step
  Extents extents_;
  size_t sent_ = 0;  ///< in this step
  uint64_t step_ = 0;
  Lists lists_;  ///< the one asked for the longest time ago first
  std::unordered_map<uint64_t, Lists::iterator> of_sequence_;
};

}  // namespace ziggurat::cuda

#include "model/cuda/seen_lists.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ziggurat::cuda {
namespace {

/// For each sequence, on average: twice as many as there are in most prompts of 16,384 tokens of a
/// text. A prompt of 8,192 different ones takes all of them.
constexpr uint32_t kTokensOfRow = 16384;
/// For all together, whatever their number: 48 MiB.
constexpr uint32_t kMostTokens = 256 * kTokensOfRow;
/// Sent in a step, for all sequences together.
constexpr size_t kTokensOfStep = size_t{1} << 19;

/// With tokens to come, so that a list is seldom moved.
uint32_t Roomy(int count) { return static_cast<uint32_t>(count) + count / 4 + 64; }

/// All of them together.
uint32_t Capacity(int rows, int vocab_size) {
  const uint32_t largest = Extents::RoomFor(Roomy(vocab_size));
  const uint64_t usual = uint64_t{std::min(largest, kTokensOfRow)} * rows;
  return std::max(largest, static_cast<uint32_t>(std::min<uint64_t>(usual, kMostTokens)));
}

}  // namespace

std::vector<MemoryPart> SeenLists::Parts(int rows, int vocab_size) {
  return {{"lists of tokens for penalties", Capacity(rows, vocab_size) * sizeof(SeenToken)}};
}

absl::StatusOr<std::unique_ptr<SeenLists>> SeenLists::Create(Stream* stream, int rows,
                                                             int vocab_size) {
  std::unique_ptr<SeenLists> lists(new SeenLists(stream, Capacity(rows, vocab_size)));
  const MemoryPart part = Parts(rows, vocab_size).front();
  auto memory = DeviceMemory::Allocate(MemoryKind::kDevice, part.bytes, part.what);
  if (!memory.ok()) return memory.status();
  lists->memory_ = *std::move(memory);
  auto pinned =
      DeviceMemory::Allocate(MemoryKind::kPinned, kTokensOfStep * sizeof(SeenToken), part.what);
  if (!pinned.ok()) return pinned.status();
  lists->pinned_ = *std::move(pinned);
  return lists;
}

void SeenLists::BeginStep() {
  ++step_;
  sent_ = 0;
}

SeenToken* SeenLists::Of(uint64_t sequence, const Sampler& sampler) {
  auto found = of_sequence_.find(sequence);
  if (found == of_sequence_.end()) {
    lists_.push_back({.sequence = sequence});
    found = of_sequence_.emplace(sequence, std::prev(lists_.end())).first;
  }
  const Lists::iterator list = found->second;
  lists_.splice(lists_.end(), lists_, list);
  list->step = step_;
  const bool is_there =
      list->capacity > sampler.num_seen() && list->num_taken == sampler.num_taken();
  if (!is_there && !Send(sampler, &*list)) {
    Drop(list);
    return nullptr;
  }
  list->num_taken = sampler.num_taken() + 1;
  return memory_.as<SeenToken>() + list->first;
}

bool SeenLists::Send(const Sampler& sampler, List* list) {
  const size_t count = sampler.num_seen();
  if (count > kTokensOfStep - sent_) return false;
  if (!MakeRoom(sampler.num_seen(), list)) return false;
  auto* pinned = pinned_.as<SeenToken>() + sent_;
  sent_ += count;
  SeenToken* end = pinned;
  for (const Sampler::Seen& token : sampler.seen()) *end++ = {token.id, token.output_count, 0};
  if (count > 0) {
    stream_->Copy(memory_.as<SeenToken>() + list->first, pinned, count * sizeof(SeenToken));
  }
  return true;
}

bool SeenLists::MakeRoom(int count, List* list) {
  if (list->capacity > count) return true;
  if (list->capacity != 0) extents_.Free(list->first, list->capacity);
  list->capacity = 0;
  return Allocate(Roomy(count), list) || Allocate(static_cast<uint32_t>(count) + 1, list);
}

bool SeenLists::Allocate(uint32_t tokens, List* list) {
  const uint32_t room = Extents::RoomFor(tokens);
  if (room > capacity_) return false;
  while ((list->first = extents_.Allocate(room)) == Extents::kFull) {
    // Those of the step before may be asked for in this one, too.
    if (lists_.front().step + 1 >= step_) return false;
    Drop(lists_.begin());
  }
  list->capacity = static_cast<int>(room);
  return true;
}

void SeenLists::Drop(Lists::iterator list) {
  if (list->capacity != 0) extents_.Free(list->first, list->capacity);
  of_sequence_.erase(list->sequence);
  lists_.erase(list);
}

}  // namespace ziggurat::cuda

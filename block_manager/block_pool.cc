#include "block_manager/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) \
  (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) \
  (static_cast<void>(address), static_cast<void>(size))
#endif

namespace ziggurat {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
// Huge pages spare decode attention its TLB misses, but the first touch of one makes 2 MiB
// resident. Behind this much memory in small pages that is at most 3 % above the high-water mark.
constexpr size_t kSmallPagesBytes = size_t{64} << 20;

size_t RoundUp(size_t value, size_t multiple) { return DivideUp(value, multiple) * multiple; }

// Reserves address space aligned to a huge page, or returns nullptr. No memory is resident yet.
std::byte* Reserve(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() - 2 * kHugePageBytes) {
    return nullptr;
  }
  const size_t mapped_bytes = bytes + kHugePageBytes;
  void* const mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  std::byte* const start = static_cast<std::byte*>(mapped);
  const size_t head_bytes = RoundUp(reinterpret_cast<uintptr_t>(mapped), kHugePageBytes) -
                            reinterpret_cast<uintptr_t>(mapped);
  std::byte* const base = start + head_bytes;
  if (head_bytes > 0) {
    munmap(start, head_bytes);
  }
  munmap(base + bytes, mapped_bytes - head_bytes - bytes);
  // Advice only: a kernel without transparent huge pages may refuse it.
  madvise(base, std::min(bytes, kSmallPagesBytes), MADV_NOHUGEPAGE);
  if (bytes > kSmallPagesBytes) {
    madvise(base + kSmallPagesBytes, bytes - kSmallPagesBytes, MADV_HUGEPAGE);
  }
  return base;
}

size_t ReservedBytes(size_t num_blocks, size_t block_bytes) {
  constexpr size_t kPageBytes = 4096;
  return RoundUp(num_blocks * block_bytes, kPageBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(size_t num_blocks, size_t block_bytes,
                                                             std::byte* memory) {
  if (num_blocks == 0 || num_blocks > std::numeric_limits<BlockId>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a block pool needs 1 to 2^32 - 1 blocks, not ", num_blocks));
  }
  if (block_bytes == 0 || block_bytes % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_bytes must be a positive multiple of 64, not ", block_bytes));
  }
  const bool overflows = block_bytes > std::numeric_limits<size_t>::max() / 2 / num_blocks;
  std::byte* const base = overflows           ? nullptr
                          : memory != nullptr ? memory
                                              : Reserve(ReservedBytes(num_blocks, block_bytes));
  if (base == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", num_blocks, " blocks of ",
                                                     block_bytes, " bytes for the KV cache"));
  }
  const bool is_hosts = memory == nullptr;
  if (is_hosts) ASAN_POISON_MEMORY_REGION(base, num_blocks * block_bytes);
  return std::unique_ptr<BlockPool>(new BlockPool(base, is_hosts, num_blocks, block_bytes));
}

BlockPool::BlockPool(std::byte* base, bool is_hosts, size_t num_blocks, size_t block_bytes)
    : base_(base), is_hosts_(is_hosts), block_bytes_(block_bytes), reference_counts_(num_blocks) {
  free_.reserve(num_blocks);  // so that Release never allocates
}

BlockPool::~BlockPool() {
  if (used_blocks() != 0) {
    std::fprintf(stderr, "block pool destroyed while %zu of %zu blocks are in use\n", used_blocks(),
                 num_blocks());
    std::abort();
  }
  if (!is_hosts_) return;
  ASAN_UNPOISON_MEMORY_REGION(base_, num_blocks() * block_bytes_);
  munmap(base_, ReservedBytes(num_blocks(), block_bytes_));
}

absl::Status BlockPool::Allocate(absl::Span<BlockId> out) {
  if (out.size() > free_blocks()) {
    return absl::ResourceExhaustedError(absl::StrCat("the KV cache has ", free_blocks(),
                                                     " free blocks of ", num_blocks(), ", needs ",
                                                     out.size()));
  }
  for (BlockId& id : out) {
    if (free_.empty()) {
      id = static_cast<BlockId>(high_water_++);
    } else {
      id = free_.back();
      free_.pop_back();
    }
    reference_counts_[id] = 1;
    if (is_hosts_) ASAN_UNPOISON_MEMORY_REGION(view().Block(id), block_bytes_);
  }
  return absl::OkStatus();
}

void BlockPool::CheckInUse(BlockId id, const char* what) const {
  if (id >= num_blocks() || reference_counts_[id] == 0) [[unlikely]] {
    std::fprintf(stderr, "block pool: %s block %" PRIu32 ", which %s\n", what, id,
                 id >= num_blocks() ? "does not exist" : "is free");
    std::abort();
  }
}

void BlockPool::AddReference(absl::Span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    CheckInUse(id, "reference to");
    ++reference_counts_[id];
  }
}

void BlockPool::Release(absl::Span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    CheckInUse(id, "release of");
    if (--reference_counts_[id] == 0) {
      free_.push_back(id);
      if (is_hosts_) ASAN_POISON_MEMORY_REGION(view().Block(id), block_bytes_);
    }
  }
}

absl::Status BlockPool::CheckIntegrity() const {
  std::vector<bool> is_free(num_blocks());
  for (const BlockId id : free_) {
    if (id >= high_water_) {
      return absl::InternalError(absl::StrCat("block ", id, " is free but was never used"));
    }
    if (is_free[id]) {
      return absl::InternalError(absl::StrCat("block ", id, " is free twice"));
    }
    is_free[id] = true;
  }
  for (size_t id = 0; id < num_blocks(); ++id) {
    const bool expected_free = is_free[id] || id >= high_water_;
    if (expected_free != (reference_counts_[id] == 0)) {
      return absl::InternalError(absl::StrCat("block ", id, expected_free ? " is free" : " is used",
                                              " but has ", reference_counts_[id], " references"));
    }
  }
  return absl::OkStatus();
}

absl::Status BlockPool::CheckIntegrity(absl::Span<const BlockId> owners) const {
  if (absl::Status status = CheckIntegrity(); !status.ok()) {
    return status;
  }
  std::vector<uint32_t> counts(num_blocks());
  for (const BlockId id : owners) {
    if (id >= num_blocks()) {
      return absl::InternalError(
          absl::StrCat("a table names block ", id, " of a pool of ", num_blocks()));
    }
    ++counts[id];
  }
  for (size_t id = 0; id < num_blocks(); ++id) {
    if (counts[id] != reference_counts_[id]) {
      return absl::InternalError(absl::StrCat("block ", id, " has ", reference_counts_[id],
                                              " references but ", counts[id], " owners"));
    }
  }
  return absl::OkStatus();
}

}  // namespace ziggurat

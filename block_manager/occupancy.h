// The proof that nothing is lost between many sequences and their pool.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_manager/block_pool.h"
#include "block_manager/sequence_cache.h"

namespace ziggurat {

/// Proves conservation: the pool's free list and counts agree, every table of every sequence is
/// sound, and each block has exactly as many references as tables name it; so `sequences` must be
/// all that live in `pool`. INTERNAL names what is wrong. O(pool blocks + references).
absl::Status CheckIntegrity(const BlockPool& pool,
                            absl::Span<const SequenceCache* const> sequences);

}  // namespace ziggurat

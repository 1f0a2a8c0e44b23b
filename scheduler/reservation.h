// Which free blocks are promised to whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ziggurat {

/// Blocks that one sequence may still take, layer by layer. Part of the ledger's sum.
struct Reservation {
  std::vector<uint32_t> layer_blocks;
  size_t total = 0;
};

/// The sum of all reservations. Invariant: `total() <= pool.free_blocks()`, so whoever holds a
/// reservation never finds the pool empty.
class ReservationLedger {
 public:
  explicit ReservationLedger(int num_layers) : layer_totals_(num_layers, 0) {}

  /// Promises `blocks` (one entry for each layer).
  Reservation Reserve(std::vector<uint32_t> blocks) {
    Reservation reservation{std::move(blocks), 0};
    for (size_t l = 0; l < reservation.layer_blocks.size(); ++l) {
      reservation.total += reservation.layer_blocks[l];
      layer_totals_[l] += reservation.layer_blocks[l];
    }
    total_ += reservation.total;
    return reservation;
  }

  /// Lowers what is promised for `layer` by `blocks`: they were allocated, or are not needed.
  void Lower(Reservation& reservation, int layer, size_t blocks) {
    reservation.layer_blocks[layer] -= static_cast<uint32_t>(blocks);
    reservation.total -= blocks;
    layer_totals_[layer] -= blocks;
    total_ -= blocks;
  }

  /// Promises `blocks` more for `layer`: it has just given back as many.
  void Raise(Reservation& reservation, int layer, size_t blocks) {
    reservation.layer_blocks[layer] += static_cast<uint32_t>(blocks);
    reservation.total += blocks;
    layer_totals_[layer] += blocks;
    total_ += blocks;
  }

  /// Gives back all that is left of `reservation`.
  void Cancel(Reservation& reservation) {
    for (size_t l = 0; l < reservation.layer_blocks.size(); ++l) {
      Lower(reservation, static_cast<int>(l), reservation.layer_blocks[l]);
    }
  }

  size_t total() const { return total_; }
  size_t layer_total(int layer) const { return layer_totals_[layer]; }

 private:
  std::vector<size_t> layer_totals_;
  size_t total_ = 0;
};

}  // namespace ziggurat

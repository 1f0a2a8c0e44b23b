// Tokens that leave a segment in front, once they have been copied elsewhere.
#pragma once

#include <vector>

#include "block_manager/layer_block_table.h"
#include "model/model_runner.h"
#include "scheduler/store/copy_slots.h"

namespace ziggurat {

/// The tokens behind them move to the front of the segment, unless whole blocks leave it: then they
/// stay where they are. `Order`, the engine has the copies done, `Finish`.
class LeavingTokens {
 public:
  /// Orders what moves when the first `count` tokens of the segment leave. `others_move`: the
  /// others do in any case, so that there is an edit.
  void Order(const LayerBlockTable& table, int segment, int count, bool others_move,
             std::vector<CacheEdit>* edits) {
    count_ = count;
    others_stay_ = !others_move && table.CanRemoveFirst(segment, count);
    const int slots = table.view()[segment].num_slots;
    if (others_stay_ || (!others_move && slots == count)) return;
    edits->push_back(CopySlots(table, segment, count, slots - count, segment, 0));
  }
  void Finish(LayerBlockTable* table, int segment) {
    if (count_ == 0) return;
    if (others_stay_) {
      table->RemoveFirst(segment, count_);
    } else {
      table->Truncate(segment, table->view()[segment].num_slots - count_);
    }
    count_ = 0;
  }

 private:
  int count_ = 0;
  bool others_stay_ = false;
};

}  // namespace ziggurat

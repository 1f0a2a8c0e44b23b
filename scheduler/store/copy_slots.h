// How a store orders a copy between two segments of its layer.
#pragma once

#include "block_manager/layer_block_table.h"
#include "model/model_runner.h"

namespace ziggurat {

/// Orders that slots [first, first + count) of segment `from` be copied to those of `to` from
/// `first_slot` on. The order names the table's views, which see what it gains until it is done.
inline CopyEdit CopySlots(const LayerBlockTable& table, int from, int first, int count, int to,
                          int first_slot) {
  return {&table.view()[from], first, {}, count, &table.view()[to], first_slot};
}

}  // namespace ziggurat

// May this process use tile registers?
#pragma once

namespace ziggurat::cpu {

/// Whether there are tile registers for bf16 and bytes, and this process may use them: Linux saves
/// them only for processes that have asked, which this does. Any thread.
bool HasTiles();

}  // namespace ziggurat::cpu

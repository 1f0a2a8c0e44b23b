// Every process may use tiles that are emulated.
#include "attention/cpu/tile_permission.h"

namespace ziggurat::cpu {

bool HasTiles() { return true; }

}  // namespace ziggurat::cpu

// What a terminal is like.
#pragma once

namespace ziggurat {

/// Columns of the terminal that a file descriptor is; else $COLUMNS, up to 1000; else 80.
int TerminalColumns(int descriptor);

}  // namespace ziggurat

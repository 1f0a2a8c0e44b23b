#include "server/cli/terminal.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>

namespace ziggurat {

int TerminalColumns(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int wanted = columns != nullptr ? std::atoi(columns) : 0;
  return wanted > 0 ? std::min(wanted, 1000) : 80;
}

}  // namespace ziggurat

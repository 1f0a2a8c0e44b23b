// Words of a command line that is shown to be repeated.
#pragma once

#include <string>

namespace ziggurat {

/// For a shell: as it is where that is safe, else between single quotes. A word that Printable()
/// would change is escaped as bash, zsh and ksh read it ($'...'), so that it stays on one line.
std::string ShellQuoted(const std::string& word);

}  // namespace ziggurat

// Texts of others on a terminal and in a log.
#pragma once

#include <string>
#include <string_view>

namespace ziggurat {

/// `text` on one line and without effect on a terminal: control characters, bytes that are not
/// UTF-8, and characters that change the line or the direction of the text are written as escapes
/// (\n, \x1b, \u202e). Everything else stays as it is, backslashes and quotes too: this is to be
/// read, not to be undone.
std::string Printable(std::string_view text);

/// The same, but for line feeds, which stay: for texts whose lines are our own.
std::string PrintableLines(std::string_view text);

/// The same for a message that may end with a line of a policy and one with a caret below it, which
/// stay lines (PolicyTextError).
std::string PrintableMessage(std::string_view text);

}  // namespace ziggurat

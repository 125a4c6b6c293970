// The terminal that stderr, or stdout, may be.
#pragma once

namespace megalith {

// Returns whether stderr is a terminal, where a line can be overwritten.
bool stderr_is_terminal();
// Returns whether stdout is a terminal, so that results appear between live lines.
bool stdout_is_terminal();
// Returns its width now; 0 if stderr is not a terminal.
int terminal_columns();
// Returns whether the terminal's character set has more than ASCII, so that it shows bars and curves.
bool shows_unicode();

}  // namespace megalith

#include "megalith/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "megalith/base/env.h"
#include "megalith/base/text.h"

namespace megalith {

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// The first of these variables that is set decides, as it does in the C library.
bool shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const auto locale = env_string(name)) {
      const std::string lower = to_lower(*locale);
      return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
    }
  return false;
}

}  // namespace megalith

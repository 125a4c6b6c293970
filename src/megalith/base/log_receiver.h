// Log lines for a program that has a log of its own: they go to it in place of stderr.
#pragma once

#include <functional>
#include <string_view>

#include "megalith/base/log.h"

namespace megalith {

using LogReceiver = std::function<void(LogLevel level, std::string_view line)>;

// Passes on every line that would appear on stderr, progress and summaries included (at level info, line by line), but
// for live lines, which have no meaning in a log. nullptr brings stderr back. The log file gets its lines either way.
// Called on the thread that logs, with no lock held, so it may wait for one; lines of several threads may come at once.
void set_log_receiver(LogReceiver receiver);

}  // namespace megalith

// Something on disk that several ranks need and one of them makes.
#pragma once

#include <filesystem>
#include <functional>

#include "megalith/io/file_lock.h"

namespace megalith::io {

// Calls `build`, which must make `target` in one step (write under another name, then rename), unless it is there. Of
// several callers, in any number of processes and threads on a shared file system, one builds and the others wait; the
// lock ends with its holder, so a killed builder is followed by the next caller. If `build` throws, so does this, and
// the next caller builds. True when this call built. Waiting is told in the log; beyond the limit a DataError names the
// lock.
//
// Not inside of a collective: ranks may arrive at any time.
bool build_once(const std::filesystem::path& target, const std::function<void()>& build, const LockWait& wait = {});

}  // namespace megalith::io

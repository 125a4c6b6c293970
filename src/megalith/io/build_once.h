// Builds something on disk that several ranks need, on one of them.
//
//   build_once(cache / "index", [&] { write_index(temporary); rename(temporary, cache / "index"); });
#pragma once

#include <filesystem>
#include <functional>

#include "megalith/io/file_lock.h"

namespace megalith::io {

// Calls `build` unless `target` exists. `build` must create `target` atomically (write under another name, then
// rename). Of several callers, in any number of processes and threads on a shared file system, one builds and the
// others wait. The lock ends with its holder, so when a builder is killed, the next caller takes over; when `build`
// throws, so does this call, and the next caller builds. Returns whether this call built. Waiting is logged; after
// the limit a DataError names the lock.
//
// Do not call it inside a collective: ranks may arrive at any time.
bool build_once(const std::filesystem::path& target, const std::function<void()>& build, const LockWait& wait = {});

}  // namespace megalith::io

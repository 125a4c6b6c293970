// Something on disk that several ranks need and one of them makes.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>

namespace megalith::data {

struct BuildOnceOptions {
  std::chrono::milliseconds limit = std::chrono::minutes(60);  // how long to wait for another rank
  std::chrono::milliseconds message_every = std::chrono::seconds(30);
};

// Calls `build`, which must make `target` in one step (write under another name, then rename), unless it is there. Of
// several callers, in any number of processes and threads on a shared file system, one builds and the others wait; the
// lock ends with its holder, so a killed builder is followed by the next caller. If `build` throws, so does this, and
// the next caller builds. True when this call built. Waiting is told in the log; beyond the limit a DataError names the
// lock.
//
// Not inside of a collective: ranks may arrive at any time.
bool build_once(const std::filesystem::path& target, const std::function<void()>& build,
                const BuildOnceOptions& options = {});

}  // namespace megalith::data

// Runs independent pieces of work on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace megalith::io {

// Calls body(i) for 0 <= i < count on up to `threads` threads, the calling one among them, and returns when all have
// finished. Threads take the next i when they are free, so pieces may differ in size. If several calls throw, the
// exception of the smallest i is rethrown, so that the outcome does not depend on the number of threads.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& body);

}  // namespace megalith::io

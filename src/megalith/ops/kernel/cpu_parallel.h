// Threads for the CPU kernels: those of libtorch, so that its operations and ours do not compete for the cores.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace megalith::ops {

// Returns the number of parts that parallel_for cuts `n` items into: one per thread (at::get_num_threads), but none
// except the last with fewer than `grain` items; 1 inside a parallel region; 0 for n = 0.
int64_t parallel_parts(int64_t n, int64_t grain);

// Calls body(begin, end) for parallel_parts(n, grain) pieces of [0, n) of equal length (the last may be shorter) and
// returns when all have finished; rethrows the first exception. Part i starts at i · divup(n, parts): results per part
// depend on the number of threads, never on their timing. One part is a plain call.
void parallel_for(int64_t n, int64_t grain, c10::function_ref<void(int64_t begin, int64_t end)> body);

// Calls body(part, begin, end), for code that sums per part. `parts` is the result of parallel_parts().
void parallel_for_parts(int64_t n, int64_t parts,
                        c10::function_ref<void(int64_t part, int64_t begin, int64_t end)> body);

}  // namespace megalith::ops

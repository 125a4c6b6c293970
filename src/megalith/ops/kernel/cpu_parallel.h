// Threads for the CPU kernels: the ones of libtorch, so that its operations and ours do not fight for the cores.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace megalith::ops {

// How many parts parallel_for cuts `n` items into: as many as there are threads (at::get_num_threads), but none with
// fewer than `grain` items but the last; 1 inside of a parallel region; 0 for n 0.
int64_t parallel_parts(int64_t n, int64_t grain);

// body(begin, end) over [0, n) in parallel_parts(n, grain) pieces of equal length (the last may be shorter), and
// returns when all are done; an exception of one is passed on. Part i starts at i · divup(n, parts): what is computed
// by part depends on the number of threads, never on their timing. With one part it is a plain call.
void parallel_for(int64_t n, int64_t grain, c10::function_ref<void(int64_t begin, int64_t end)> body);

// The same for code that sums by part: body(part, begin, end). `parts` is what parallel_parts returned.
void parallel_for_parts(int64_t n, int64_t parts,
                        c10::function_ref<void(int64_t part, int64_t begin, int64_t end)> body);

}  // namespace megalith::ops

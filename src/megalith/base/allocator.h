// How the C library's allocator treats big blocks. For programs to call once, at their start.
#pragma once

namespace megalith {

// Training on CPU allocates and frees the same big tensors in every step. By default glibc gives each of them back to
// the system, and the next step pays for fresh pages. Afterwards freed blocks up to 32 MB stay with the process. Where
// MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ are set, they decide. Does nothing with another C library.
void keep_freed_memory();

}  // namespace megalith

// Settings of the C library's allocator. A program calls this once, when it starts.
#pragma once

namespace megalith {

// Keeps freed blocks of up to 32 MB in the process. Training on CPU allocates and frees the same big tensors in every
// step; by default glibc returns each of them to the system, and the next step pays for fresh pages. The environment
// variables MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ take precedence. No effect with another C library.
void keep_freed_memory();

}  // namespace megalith

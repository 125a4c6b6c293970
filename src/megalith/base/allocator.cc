#include "megalith/base/allocator.h"

#include <cstdlib>  // tells __GLIBC__

#include "megalith/base/env.h"

#ifdef __GLIBC__
#include <malloc.h>

#include <climits>
#endif

namespace megalith {

void keep_freed_memory() {
#ifdef __GLIBC__
  // glibc has read these by now; a call here would undo what a person has set.
  if (!env_string("MALLOC_MMAP_THRESHOLD_")) mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  if (!env_string("MALLOC_TRIM_THRESHOLD_")) mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace megalith

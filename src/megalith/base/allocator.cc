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
  // glibc has already read these variables; mallopt would override what the user set.
  if (!env_string("MALLOC_MMAP_THRESHOLD_")) mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that glibc accepts
  if (!env_string("MALLOC_TRIM_THRESHOLD_")) mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace megalith

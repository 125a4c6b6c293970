#include "megalith/base/allocator.h"

#include <cstdlib>  // tells __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>

#include <climits>
#endif

namespace megalith {

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace megalith

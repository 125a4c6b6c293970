#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "megalith/base/error.h"
#include "megalith/data/read_at_internal.h"

namespace megalith::data {

// pread, so that the position is not part of the descriptor.
size_t read_at(const io::FileHandle& file, uint64_t offset, char* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(file.descriptor(), to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    check<DataError>(got >= 0, "cannot read {}: {}", file.path().string(), std::generic_category().message(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace megalith::data

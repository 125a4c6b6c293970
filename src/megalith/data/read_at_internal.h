// Reading a part of a file, for those who cut files into records.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megalith/io/file_io.h"

namespace megalith::data {

// Reads up to `bytes` bytes at `offset`; fewer only at the end of the file. Threads can share the file. Throws a
// DataError if it cannot be read.
size_t read_at(const io::FileHandle& file, uint64_t offset, char* to, size_t bytes);

}  // namespace megalith::data

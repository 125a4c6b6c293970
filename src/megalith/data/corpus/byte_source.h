// ByteSource: the bytes of a file or of stdin, decompressed if necessary.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

namespace megalith::data {

// Not thread-safe. Forward only: pipes cannot be rewound.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Reads bytes to the front of `out` and returns how many; 0 at the end. Throws a DataError that names the file if it
  // cannot be read, is damaged or is cut short.
  virtual size_t read(std::span<char> out) = 0;
};

// Opens a file; "-" is stdin. Data that begins with the magic number of gzip or Zstandard is decompressed, whatever the
// name of the file; several compressed parts in a row are allowed. A request through `stop` ends the wait for a pipe,
// as if the input had ended. Throws a DataError if the file cannot be opened, and a ConfigError if this build cannot
// decompress it. Regular files are read without waiting; only pipes and terminals can make a read wait.
std::unique_ptr<ByteSource> open_bytes(const std::string& path, std::stop_token stop = {});

}  // namespace megalith::data

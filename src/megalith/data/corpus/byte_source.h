// Bytes of a file or of stdin, unpacked when they are packed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

namespace megalith::data {

// One thread at a time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills `out` from the front and returns how many bytes; 0 at the end. Throws DataError, naming the file, when it
  // cannot be read, is damaged or is cut short.
  virtual size_t read(std::span<char> out) = 0;
};

// "-" is stdin. What begins as gzip or Zstandard does is unpacked, whatever its name (several packed parts one behind
// the other are fine). Waiting for a pipe ends when `stop` is requested, as if the input ended. Throws DataError when
// the file cannot be opened, ConfigError when this build cannot unpack it.
std::unique_ptr<ByteSource> open_bytes(const std::string& path, std::stop_token stop = {});

}  // namespace megalith::data

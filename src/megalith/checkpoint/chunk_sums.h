// ChunkSums: computes the checksums of a file's chunks from the data that ranks write into it, without reading it back.
// Bytes that no rank wrote, or that were written twice, make the checksum wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::checkpoint {

// Not thread-safe.
class ChunkSums {
 public:
  // Starts with all chunks empty; a file of 0 bytes has none.
  explicit ChunkSums(uint64_t file_bytes);

  // Adds data written at `offset`. Each byte of the file must be added once, in any order and on any rank.
  void add(uint64_t offset, const std::byte* data, uint64_t bytes);

  // This rank's contribution, [chunks]. The contributions of all ranks are combined by exclusive or.
  std::vector<uint32_t>& parts() { return parts_; }
  const std::vector<uint32_t>& parts() const { return parts_; }
  // Returns the checksums, once parts() holds the combination of all ranks.
  std::vector<uint32_t> crc32c() const;

 private:
  uint64_t chunk_end(uint64_t chunk) const;

  uint64_t file_bytes_;
  std::vector<uint32_t> parts_;  // by chunk: CRC registers moved to the chunk's end (base/crc32c.h)
};

}  // namespace megalith::checkpoint

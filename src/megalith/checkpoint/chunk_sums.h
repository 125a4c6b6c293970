// ChunkSums: the checksums of a file's chunks, put together from what ranks write into it, without reading it back.
// What nobody wrote, or somebody wrote twice, does not fit its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::checkpoint {

// One thread at a time.
class ChunkSums {
 public:
  explicit ChunkSums(uint64_t file_bytes);

  // Each byte of the file once, in any order and by any rank.
  void add(uint64_t offset, const std::byte* data, uint64_t bytes);

  // What this rank has added, for a sum over all ranks: [chunks]. The sum is the exclusive or.
  std::vector<uint32_t>& parts() { return parts_; }
  const std::vector<uint32_t>& parts() const { return parts_; }
  // The checksums, once parts() are those of all ranks together.
  std::vector<uint32_t> crc32c() const;

 private:
  uint64_t chunk_end(uint64_t chunk) const;

  uint64_t file_bytes_;
  std::vector<uint32_t> parts_;  // one a chunk: registers moved to its end
};

}  // namespace megalith::checkpoint

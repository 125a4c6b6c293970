// Ranks write different parts of one file, so no rank sees a whole chunk. CRC-32C is linear over GF(2): the register of
// a chunk is the exclusive or of the registers of its parts, each advanced over the bytes that follow it. crc32c_moved
// does that in O(log n) instead of reading zeros.
#include "megalith/checkpoint/chunk_sums.h"

#include <algorithm>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"
#include "megalith/checkpoint/manifest.h"

namespace megalith::checkpoint {

ChunkSums::ChunkSums(uint64_t file_bytes) : file_bytes_(file_bytes), parts_(chunks_of(file_bytes)) {}

uint64_t ChunkSums::chunk_end(uint64_t chunk) const { return std::min(file_bytes_, (chunk + 1) * kChunkBytes); }

// The CRC of a chunk is linear in its bytes: each part contributes its own register, moved over the bytes that follow
// it in the chunk, whatever they are.
void ChunkSums::add(uint64_t offset, const std::byte* data, uint64_t bytes) {
  check(offset <= file_bytes_ && bytes <= file_bytes_ - offset, "{} bytes at {} lie beyond the end of the file, {}",
        bytes, offset, file_bytes_);
  while (bytes > 0) {
    const uint64_t chunk = offset / kChunkBytes, end = chunk_end(chunk);
    const uint64_t part = std::min(bytes, end - offset);
    parts_[chunk] ^= crc32c_moved(crc32c_register(data, part), end - offset - part);
    offset += part;
    data += part;
    bytes -= part;
  }
}

std::vector<uint32_t> ChunkSums::crc32c() const {
  std::vector<uint32_t> sums;
  for (uint64_t chunk = 0; chunk < parts_.size(); ++chunk)
    sums.push_back(crc32c_of_parts(parts_[chunk], chunk_end(chunk) - chunk * kChunkBytes));
  return sums;
}

}  // namespace megalith::checkpoint

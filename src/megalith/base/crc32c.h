// CRC-32C (Castagnoli): the checksum of TFRecord files and of checkpoints. Uses the processor's CRC instruction if it
// has one.
//
// A CRC is linear, so the checksum of a file can be combined from parts that different ranks hold, in any order and
// without reading the file: it is the exclusive or of the registers of all parts, each moved to the end of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace megalith {

// Returns the checksum of `bytes` as TFRecord and checkpoint files store it.
uint32_t crc32c(std::string_view bytes);

// ---- In parts ----
// Returns the CRC register after `bytes` bytes, starting from `before`; 0 for a part that is summed up separately.
uint32_t crc32c_register(const void* data, size_t bytes, uint32_t before = 0);
// Returns the register after another `bytes` zero bytes: moves a part to its distance from the end.
uint32_t crc32c_moved(uint32_t part, uint64_t bytes);
// Returns crc32c() of a text of `bytes` bytes, where `sum` is the exclusive or of its moved parts.
uint32_t crc32c_of_parts(uint32_t sum, uint64_t bytes);

}  // namespace megalith

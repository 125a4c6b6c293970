// CRC-32C (Castagnoli): the checksum of TFRecord files and of checkpoints. Uses the processor's instruction where it
// has one.
//
// A CRC is linear, so that the checksum of a file can be put together from parts that different ranks hold, in any
// order, without anybody reading the file: the sum (exclusive or) of each part's register, moved to the file's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace megalith {

uint32_t crc32c(std::string_view bytes);

// ---- In parts ----
// The register behind `bytes` when it was `before`: 0 for a part by itself.
uint32_t crc32c_register(const void* data, size_t bytes, uint32_t before = 0);
// The register after `bytes` zero bytes more: moves a part to its distance from the end.
uint32_t crc32c_moved(uint32_t part, uint64_t bytes);
// crc32c() of `bytes` bytes whose moved parts sum up to `sum`.
uint32_t crc32c_of_parts(uint32_t sum, uint64_t bytes);

}  // namespace megalith

// CRC-32C (Castagnoli), the checksum of TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace megalith::observe {

uint32_t crc32c(std::string_view bytes);
// As TFRecord stores it: rotated and shifted, so that a checksum of data that holds checksums is a good one.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace megalith::observe

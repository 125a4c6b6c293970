// Sizes on the command line.
#pragma once

#include <cstdint>
#include <string>

namespace megalith::cli {

// Returns the bytes of a size like "5GB". As in transformers, KB, MB and GB are powers of ten, and KiB, MiB and GiB
// powers of two; a number alone counts bytes. Throws ConfigError naming `option`.
uint64_t parse_byte_size(const std::string& option, const std::string& text);

}  // namespace megalith::cli

// Sizes on the command line.
#pragma once

#include <cstdint>
#include <string>

namespace megalith::cli {

// The bytes of "5GB", as transformers reads it: powers of ten; KiB, MiB and GiB are powers of two; a number alone
// counts bytes. Throws ConfigError naming `option`.
uint64_t parse_byte_size(const std::string& option, const std::string& text);

}  // namespace megalith::cli

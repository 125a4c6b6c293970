// MD5 (RFC 1321), for the names of cache files that are shared with Megatron. Not for security.
#pragma once

#include <string>
#include <string_view>

namespace megalith::data {

// Returns the hash as 32 hexadecimal digits.
std::string md5_hex(std::string_view text);

}  // namespace megalith::data

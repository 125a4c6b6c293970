// MD5 (RFC 1321), for the names of cache files that are shared with Megatron. Not for security.
#pragma once

#include <string>
#include <string_view>

namespace megalith::data {

// Returns the hash as 32 hexadecimal digits. md5_hex("") is d41d8cd98f00b204e9800998ecf8427e.
std::string md5_hex(std::string_view text);

}  // namespace megalith::data

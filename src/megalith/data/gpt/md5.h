// MD5 (RFC 1321): names of files in caches that are shared with Megatron. Not for security.
#pragma once

#include <string>
#include <string_view>

namespace megalith::data {

// 32 hexadecimal digits.
std::string md5_hex(std::string_view text);

}  // namespace megalith::data

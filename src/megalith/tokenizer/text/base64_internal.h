// Bytes that JSON files hold as base64 text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// Returns the bytes; std::nullopt when the text is not base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace megalith::tokenizer

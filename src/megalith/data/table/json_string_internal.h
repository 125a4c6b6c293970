// Text as a JSON string, for those who write rows of a table as JSON objects.
#pragma once

#include <string>
#include <string_view>

namespace megalith::data {

// Appends `text` in double quotes. Bytes that are not UTF-8 are kept: the parser of the record names them.
inline void append_json_string(std::string_view text, std::string& out) {
  constexpr const char* kDigits = "0123456789abcdef";
  const auto is_plain = [](char byte) {
    return static_cast<unsigned char>(byte) >= 0x20 && byte != '"' && byte != '\\';
  };
  out += '"';
  for (size_t at = 0; at < text.size();) {
    size_t end = at;  // plain bytes, which are most, are copied together
    while (end < text.size() && is_plain(text[end])) ++end;
    out.append(text, at, end - at);
    at = end;
    if (at == text.size()) break;
    const char byte = text[at++];
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += byte;
    } else {  // a control character; also line ends: the text of a record is one line
      out += "\\u00";
      out += kDigits[static_cast<unsigned char>(byte) >> 4];
      out += kDigits[static_cast<unsigned char>(byte) & 15];
    }
  }
  out += '"';
}

}  // namespace megalith::data

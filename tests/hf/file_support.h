// Safetensors files for the tests of `hf`.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "megalith/base/error.h"
#include "tests/io/file_support.h"

namespace megalith::hf {

using io::file_bytes;
using io::message_of;
using io::put_file;
using testing::TempFolder;

// The bytes of a safetensors file whose first 8 bytes say `length` (the header's own length by default).
inline std::string safetensors_bytes(const std::string& header, const std::string& data, int64_t length = -1) {
  const uint64_t promised = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &promised, 8);
  return bytes + header + data;
}

// A header with one tensor of bytes.
inline std::string one_tensor_header(const std::string& name, size_t bytes) {
  return "{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(bytes) + "],\"data_offsets\":[0," +
         std::to_string(bytes) + "]}}";
}

}  // namespace megalith::hf

// Files for the tests of `hf`.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "megalith/base/error.h"
#include "tests/support/temp_folder.h"

namespace megalith::hf {

using testing::TempFolder;

inline std::filesystem::path put_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

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

// The message of the E that `body` throws; the test fails when it throws none.
template <typename E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace megalith::hf

// Reference images, digests, and the tensors of a safetensors file without libtorch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "megalith/io/file_io.h"
#include "megalith/media/decode.h"
#include "tests/support/golden.h"

namespace megalith::media {

inline std::filesystem::path golden_image(const std::string& file) {
  return testing::golden_dir() / "hf/vision/images" / file;
}

inline Image decode_file(const std::filesystem::path& path) {
  return decode_image(io::read_text_file(path, 1 << 30), path.string());
}

// Returns the largest difference between some of the rows, whose numbers are given, and the same rows side by side.
inline float largest_difference(std::span<const float> rows, int64_t width, const nlohmann::json& numbers,
                                std::span<const float> expected) {
  EXPECT_EQ(numbers.size() * static_cast<size_t>(width), expected.size());
  float largest = 0;
  size_t at = 0;
  for (const auto& number : numbers)
    for (const float value :
         rows.subspan(static_cast<size_t>(number.get<int64_t>() * width), static_cast<size_t>(width)))
      largest = std::max(largest, std::abs(value - expected[at++]));
  return largest;
}

// SHA-256 in hexadecimal digits (FIPS 180-4).
inline std::string sha256(std::span<const uint8_t> input) {
  constexpr std::array<uint32_t, 64> k = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<uint32_t, 8> h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::vector<uint8_t> bytes(input.begin(), input.end());
  bytes.push_back(0x80);
  while (bytes.size() % 64 != 56) bytes.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<uint8_t>(static_cast<uint64_t>(input.size()) * 8 >> shift));
  for (size_t at = 0; at < bytes.size(); at += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i)
      for (size_t j = 0; j < 4; ++j) w[i] = w[i] << 8 | bytes[at + 4 * i + j];
    for (size_t i = 16; i < 64; ++i)
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
             (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
    std::array<uint32_t, 8> v = h;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t a = v[7] + (std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25)) +
                         ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      const uint32_t b = (std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22)) +
                         ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v = {a + b, v[0], v[1], v[2], v[3] + a, v[4], v[5], v[6]};
    }
    for (size_t i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string text;
  for (const uint32_t word : h) text += fmt::format("{:08x}", word);
  return text;
}

// The bytes of one tensor of a safetensors file.
class TensorBytes {
 public:
  explicit TensorBytes(const std::filesystem::path& path) : content_(io::read_text_file(path, 1 << 30)) {
    uint64_t length = 0;
    std::memcpy(&length, content_.data(), sizeof length);
    header_ = nlohmann::json::parse(content_.substr(8, length));
    start_ = 8 + length;
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  std::span<const uint8_t> bytes(const std::string& name) const {
    const auto range = header_.at(name).at("data_offsets");
    return {reinterpret_cast<const uint8_t*>(content_.data()) + start_ + range[0].get<size_t>(),
            range[1].get<size_t>() - range[0].get<size_t>()};
  }
  // fp16 numbers.
  std::vector<float> halves(const std::string& name) const {
    std::vector<float> values;
    const auto raw = bytes(name);
    for (size_t i = 0; i + 1 < raw.size(); i += 2) {
      const uint32_t half = raw[i] | static_cast<uint32_t>(raw[i + 1]) << 8;
      const int exponent = static_cast<int>(half >> 10 & 31);
      const auto fraction = static_cast<float>(half & 1023) / 1024;
      const float size = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      values.push_back((half & 0x8000) != 0 ? -size : size);
    }
    return values;
  }

 private:
  std::string content_;
  nlohmann::json header_;
  uint64_t start_ = 0;
};

}  // namespace megalith::media

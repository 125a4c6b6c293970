// A second reading of TensorBoard's files, by the documents and not by our writer: TFRecords, and protocol buffers as
// trees of field numbers.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::observe {

// CRC-32C, bit by bit.
inline uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t value = 0xffffffffU;
  for (const unsigned char byte : bytes) {
    value ^= byte;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? (value >> 1) ^ 0x82f63b78U : value >> 1;
  }
  return value ^ 0xffffffffU;
}

// Returns the little-endian number of `size` bytes at `at`.
inline uint64_t number_at(std::string_view bytes, size_t at, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, size);  // tests run on little-endian machines
  return value;
}

// The payloads of a file's records; every checksum is compared.
inline std::vector<std::string> records_of(std::string_view file) {
  const auto masked = [](std::string_view bytes) { return std::rotr(slow_crc32c(bytes), 15) + 0xa282ead8U; };
  std::vector<std::string> records;
  while (!file.empty()) {
    const uint64_t length = number_at(file, 0, 8);
    EXPECT_EQ(number_at(file, 8, 4), masked(file.substr(0, 8)));
    const std::string_view data = file.substr(12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(number_at(file, 12 + length, 4), masked(data));
    records.emplace_back(data);
    file.remove_prefix(16 + length);
  }
  return records;
}

// Numbers and bytes of a message by field number; the last of a field counts.
struct DecodedMessage {
  std::map<uint64_t, uint64_t> numbers;  // varints, and the bits of floating-point numbers
  std::map<uint64_t, std::string> bytes;

  explicit DecodedMessage(std::string_view text) {
    const auto varint = [&] {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(text.front());
        text.remove_prefix(1);
        value |= static_cast<uint64_t>(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
      }
    };
    while (!text.empty()) {
      const uint64_t key = varint(), field = key >> 3;
      const size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
      if ((key & 7) == 0) {
        numbers[field] = varint();
      } else if ((key & 7) == 2) {
        const uint64_t length = varint();
        bytes[field] = text.substr(0, length);
        text.remove_prefix(length);
      } else {
        numbers[field] = number_at(text, 0, size);
        text.remove_prefix(size);
      }
    }
  }
  DecodedMessage message(uint64_t field) const { return DecodedMessage(bytes.at(field)); }
  double as_double(uint64_t field) const { return std::bit_cast<double>(numbers.at(field)); }
  float as_float(uint64_t field) const { return std::bit_cast<float>(static_cast<uint32_t>(numbers.at(field))); }
};

// A point of a curve.
struct DecodedScalar {
  std::string tag;
  uint64_t step;
  float value;
  bool operator==(const DecodedScalar&) const = default;
};

// Returns the scalars of an event file, in order.
inline std::vector<DecodedScalar> scalars_of(std::string_view file) {
  std::vector<DecodedScalar> scalars;
  for (const std::string& record : records_of(file)) {
    const DecodedMessage event(record);
    if (!event.bytes.contains(5)) continue;
    const DecodedMessage value = event.message(5).message(1);
    if (!value.numbers.contains(2)) continue;
    const uint64_t step = event.numbers.contains(2) ? event.numbers.at(2) : 0;
    scalars.push_back({value.bytes.at(1), step, value.as_float(2)});
  }
  return scalars;
}

}  // namespace megalith::observe

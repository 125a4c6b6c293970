// The .idx file of an indexed dataset, version 1, as bytes. Little-endian:
//
//   byte  bytes  content
//      0      9  "MMIDIDX" and two zero bytes
//      9      8  version, 1
//     17      1  TokenType
//     18      8  S, the number of sequences
//     26      8  D, the length of the document index: documents + 1
//     34    4·S  tokens of each sequence (int32)
//      …    8·S  byte at which each sequence starts in the .bin file (int64)
//      …    8·D  sequence with which each document starts (int64): first 0, last S
//      …      S  modes (int8), only in multimodal sets
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "megalith/data/indexed/token_type.h"

namespace megalith::data {

// A view of little-endian numbers that need not be aligned (the arrays of an .idx file start at byte 34). Does not own
// the bytes.
template <typename T>
class PackedArray {
 public:
  PackedArray() = default;
  PackedArray(const std::byte* data, size_t size) : data_(data), size_(size) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T operator[](size_t i) const {
    T value;
    std::memcpy(&value, data_ + i * sizeof(T), sizeof(T));
    return value;
  }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

inline constexpr size_t kIndexHeaderBytes = 34;

// Where things are in the file; a view of its bytes.
struct IndexView {
  TokenType type = TokenType::kInt32;
  PackedArray<int32_t> lengths;    // [S]
  PackedArray<int64_t> offsets;    // [S]
  PackedArray<int64_t> documents;  // [D]
  bool has_modes = false;

  // The byte of the file at which an entry stands, for messages.
  size_t length_place(size_t i) const { return kIndexHeaderBytes + 4 * i; }
  size_t offset_place(size_t i) const { return kIndexHeaderBytes + 4 * lengths.size() + 8 * i; }
  size_t document_place(size_t i) const { return kIndexHeaderBytes + 12 * lengths.size() + 8 * i; }
};

// Checks the header and that the file has exactly the bytes that it promises. Throws DataError with `name` and the byte
// of the fault. Does not look into the arrays.
IndexView parse_index(std::span<const std::byte> file, const std::string& name);

// Checks every entry of the arrays: no negative length, sequences back to back from byte 0, together `bin_bytes`, the
// document index rising from 0 to S. Throws DataError with `name` and the byte of the first fault.
void check_index(const IndexView& index, uint64_t bin_bytes, const std::string& name);

// The file of these sequences; offsets follow from the lengths. `documents` begins with 0.
std::vector<std::byte> index_bytes(TokenType type, std::span<const int32_t> lengths,
                                   std::span<const int64_t> documents);

}  // namespace megalith::data

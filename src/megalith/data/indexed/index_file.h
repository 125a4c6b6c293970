// The .idx file of an indexed dataset, version 1. All numbers are little-endian:
//
//   byte  bytes  content
//      0      9  "MMIDIDX" and two zero bytes
//      9      8  version, 1
//     17      1  TokenType
//     18      8  S, the number of sequences
//     26      8  D, the length of the document index: documents + 1
//     34    4·S  number of tokens in each sequence (int32)
//      …    8·S  byte at which each sequence starts in the .bin file (int64)
//      …    8·D  sequence with which each document starts (int64): first 0, last S
//      …      S  modes (int8), only in multimodal datasets
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
  // `size` counts elements. The bytes must outlive the view; reading is a memcpy, which compilers turn into one load.
  PackedArray(const std::byte* data, size_t size) : data_(data), size_(size) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Requires i < size(), which is not checked.
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

// The parsed file: a view of its bytes. Valid as long as the bytes are; reading an entry does not check it (check_index
// does).
struct IndexView {
  TokenType type = TokenType::kInt32;
  PackedArray<int32_t> lengths;    // [S]
  PackedArray<int64_t> offsets;    // [S]
  PackedArray<int64_t> documents;  // [D]
  bool has_modes = false;

  // Byte offsets of entries in the file, for messages.
  size_t length_place(size_t i) const { return kIndexHeaderBytes + 4 * i; }
  size_t offset_place(size_t i) const { return kIndexHeaderBytes + 4 * lengths.size() + 8 * i; }
  size_t document_place(size_t i) const { return kIndexHeaderBytes + 12 * lengths.size() + 8 * i; }
};

// Parses the header and checks that the file has exactly the size it implies. Does not read the arrays. Throws a
// DataError that names `name` and the byte of the fault.
IndexView parse_index(std::span<const std::byte> file, const std::string& name);

// Checks every entry of the arrays: no negative length, sequences back to back from byte 0 to `bin_bytes`, and a
// document index that rises from 0 to S. Throws a DataError that names `name` and the byte of the first fault.
void check_index(const IndexView& index, uint64_t bin_bytes, const std::string& name);

// Returns the content of the file; offsets follow from the lengths. `documents` must begin with 0.
std::vector<std::byte> index_bytes(TokenType type, std::span<const int32_t> lengths,
                                   std::span<const int64_t> documents);

}  // namespace megalith::data

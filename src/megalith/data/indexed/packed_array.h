// PackedArray: numbers inside of a file's bytes, wherever they start.
#pragma once

#include <cstddef>
#include <cstring>

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

}  // namespace megalith::data

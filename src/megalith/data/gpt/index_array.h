// IndexArray: a table of integers, in memory or in a mapped .npy file.
//
//   const IndexArray array = IndexArray::open_npy("document_index.npy");
//   for (int64_t i = 0; i < array.rows(); ++i) use(array[i]);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/data/indexed/staged_files.h"

namespace megalith::data {

// The stored type of the integers. Megatron chooses the smallest that fits, and caches are shared with it.
enum class IndexType { kInt16, kInt32, kInt64, kUint32 };

// One or two dimensions, in C order. Immutable and thread-safe; copies share the numbers. A mapped file is read page by
// page as it is used, so opening an index of gigabytes is immediate.
class IndexArray {
 public:
  IndexArray() = default;
  // Takes ownership of the numbers; T is int16_t, int32_t, int64_t or uint32_t. `shape` has one or two dimensions.
  template <typename T>
  IndexArray(std::vector<T> values, std::vector<int64_t> shape);

  // Maps a .npy file (format 1 or 2, little-endian, C order, one or two dimensions). Throws a DataError that names the
  // file and the byte for anything else, including a truncated file.
  static IndexArray open_npy(const std::filesystem::path& path);
  // Writes byte for byte what numpy.save writes.
  void write_npy(const io::FileHandle& file) const;

  // The stored type, the sizes of the dimensions, and the first of them.
  IndexType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t rows() const { return shape_.empty() ? 0 : shape_[0]; }
  // Returns number i in C order; requires 0 <= i < product of the shape.
  int64_t operator[](int64_t i) const;

 private:
  IndexType type_ = IndexType::kInt32;
  std::vector<int64_t> shape_;
  std::shared_ptr<const void> owner_;  // keeps the bytes alive
  const std::byte* data_ = nullptr;
};

}  // namespace megalith::data

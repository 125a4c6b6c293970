// The interface of libmegalith_arrow.so, which reads Parquet and Arrow files.
//
// It is a library of its own, opened when the first such file is: Arrow and Parquet have 60 MB, and programs that read
// other data should neither load nor need them. Only this header is shared. Errors are std::exception: their types come
// from the C++ library, which both sides share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith::data {

// The rows of one file as texts of JSON objects, from the first to the last. Not thread-safe.
class ArrowRows {
 public:
  virtual ~ArrowRows() = default;
  // Returns the number of rows in the file, wherever next() stands. Reads what describes the file, not its values.
  virtual int64_t count() const = 0;
  // Replaces `texts` by the next rows, some MB of them at most; returns false at the end.
  virtual bool next(std::vector<std::string>& texts) = 0;
};

// How the file is stored.
enum class ArrowStorage { kParquet, kIpc };

// Type and name of the function that the library exports. The number changes with anything in this header.
using OpenArrowRows = ArrowRows* (*)(const char* path, ArrowStorage storage);
constexpr const char* kOpenArrowRowsName = "megalith_open_arrow_rows_1";

}  // namespace megalith::data

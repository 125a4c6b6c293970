// Parquet and Arrow files, through the plug-in libmegalith_arrow.so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megalith/data/table/table_reader.h"

namespace megalith::data {

class ArrowRows;

// Reads a Parquet or an Arrow file (IPC file or stream) row by row. Values are decoded some MB at a time, and a row
// group or a record batch is never in memory as text. Memory: a record batch of an Arrow file; for Parquet a few pages
// of each column.
class ArrowTable final : public TableReader {
 public:
  // Opens the plug-in if this is the first such file. Throws a ConfigError if this installation has none, and a
  // DataError if the file cannot be read or has a column of a type that has no form in JSON.
  ArrowTable(const std::filesystem::path& path, TableFormat format);
  ~ArrowTable() override;

  // Throws a DataError that names the file and the last row that could be read.
  bool next(std::string& text, int64_t& number) override;
  // Returns the number of rows in the file.
  int64_t count() const;

 private:
  [[noreturn]] void fail(const std::exception& error) const;

  std::filesystem::path path_;
  std::unique_ptr<ArrowRows> rows_;
  std::vector<std::string> texts_;  // rows of the last piece
  size_t at_ = 0;                   // the next one of them
  int64_t row_ = 0;                 // rows returned
};

}  // namespace megalith::data

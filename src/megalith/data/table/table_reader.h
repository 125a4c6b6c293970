// Files with rows and named columns: CSV, TSV, Parquet and Arrow. A row is the text of a JSON object, so that all later
// steps see what they see in a file of JSON lines.
//
//   const auto reader = open_table("train.parquet");          // sequential
//   while (reader->next(text, row)) …
//   const auto table = open_table_by_number("train.csv");     // by number, on many threads
//   const std::string text = table->text(17);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace megalith::data {

// The kind of file, by its extension.
enum class TableFormat { kCsv, kTsv, kParquet, kArrow };

// Returns the format of .csv, .tsv, .parquet and .arrow; std::nullopt for any other file.
std::optional<TableFormat> table_format(const std::filesystem::path& path);

// Reads a table sequentially. Not thread-safe. Memory is bounded by a few MB and the longest row (Arrow: record batch).
class TableReader {
 public:
  virtual ~TableReader() = default;
  // Reads the next row; returns false at the end. `number` is the place for messages, counted from 1: the line of a CSV
  // or TSV file where the row begins, otherwise the number of the row. Throws a DataError that names the file and the
  // place.
  virtual bool next(std::string& text, int64_t& number) = 0;
};

// Requires a path with a table_format. Throws a DataError if the file is not such a table, and a ConfigError if this
// installation cannot read Parquet and Arrow files.
std::unique_ptr<TableReader> open_table(const std::filesystem::path& path);

// The rows of a table by number. Thread-safe.
class TableFile {
 public:
  virtual ~TableFile() = default;
  virtual int64_t size() const = 0;
  // Return the text of a row, and its place as in TableReader. Require 0 <= index < size().
  virtual std::string text(int64_t index) const = 0;
  virtual int64_t number(int64_t index) const = 0;
};

// Throws like open_table. A CSV or TSV file is read once to find its rows. Of other files only the number of rows is
// read; values are decoded in order when they are first asked for, and kept in a file without a name in
// `scratch_folder`, which is created and needs room for their text (empty: the system's folder for temporary files).
std::unique_ptr<TableFile> open_table_by_number(const std::filesystem::path& path,
                                                const std::filesystem::path& scratch_folder = {});

}  // namespace megalith::data

// Reads the records of a data file: JSON lists, JSON lines, plain text, or the rows of a table (table_reader.h).
//
// Memory is bounded by the longest record, plus 24 bytes per record for random access; a file is never in memory as a
// whole.
//
//   RecordScanner scanner("train.jsonl");                 // sequential: streams
//   const RecordFile file("train.jsonl");                 // by number: tokenization on many threads
//   const io::Json record = file.record(17);
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megalith/data/table/table_reader.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

// How a file is divided into records.
enum class RecordFormat {
  kJson,  // a list of values, or one value per line
  kText,  // one record per line: {"text": line}
  // Tables, whose rows are read as JSON objects.
  kCsv,
  kTsv,
  kParquet,
  kArrow,
};

// Returns the format by the file's extension. Throws a DataError for any other than .json, .jsonl, .txt, .csv, .tsv,
// .parquet and .arrow.
RecordFormat record_format(const std::filesystem::path& path);

// The position of a record in its file. 24 bytes: RecordFile keeps one for each record.
struct RecordPlace {
  uint64_t offset = 0;  // offset of its first byte
  uint64_t bytes = 0;
  int64_t line = 1;  // counted from 1; in Parquet and Arrow files the row
};

// Reads a file sequentially, from the first record to the last. Not thread-safe. Text is returned as it is in the file,
// a row of a table as JSON; parse_record() decides whether it is a record.
class RecordScanner {
 public:
  // Throws a DataError if the file cannot be read, and a ConfigError for a table that this installation cannot read.
  explicit RecordScanner(const std::filesystem::path& path);

  // Reads the text of the next record; returns false at the end. Throws a DataError that names file and line if a list
  // is not closed or has anything between or after its records, for a damaged table, and for a record of more than 256
  // MB. `text` is reused from call to call, so that its memory is. Only the line of a row's place is set.
  bool next(std::string& text, RecordPlace& place);

  // The file and its format, for parse_record.
  const std::filesystem::path& path() const { return file_.path(); }
  RecordFormat format() const { return format_; }

 private:
  bool fill();  // reads more; false at the end of the file
  int peek();   // returns the next byte, or -1 at the end
  void skip();  // consumes it
  // begin() finds out whether the file is a list; next_line() and next_element() read a record of either kind.
  void skip_blanks();
  void begin();
  bool next_line(std::string& text, RecordPlace& place);
  bool next_element(std::string& text, RecordPlace& place);
  void take_value(std::string& text);
  void take_string(std::string& text);
  void take(std::string& text);  // appends the next byte to `text`
  [[noreturn]] void fail(const std::string& problem) const;

  io::FileHandle file_;
  RecordFormat format_;
  std::unique_ptr<TableReader> table_;  // for a table; the members below are for other files
  std::string buffer_;
  size_t at_ = 0;              // position in the buffer
  uint64_t buffer_start_ = 0;  // offset of the buffer in the file
  int64_t line_ = 1;
  bool begun_ = false, in_list_ = false, list_ended_ = false, first_element_ = true;
};

// Parses the text of a record. Throws a DataError that names "file:line" if it is not a JSON object or not UTF-8.
io::Json parse_record(const std::string& text, RecordFormat format, const std::filesystem::path& path, int64_t line);

// Random access to the records of a file. Immutable and thread-safe. Reading uses pread, so threads share one
// descriptor without a lock.
class RecordFile {
 public:
  // Reads the file once to find the records; their content is checked when they are read. Of a Parquet or Arrow file
  // only the number of rows is read; open_table_by_number says how `scratch_folder` is used for those.
  // `read` is called with bytes that have been read since the last call.
  explicit RecordFile(const std::filesystem::path& path, const std::filesystem::path& scratch_folder = {},
                      const std::function<void(int64_t bytes)>& read = {});

  // The number of records, and the file.
  int64_t size() const { return table_ ? table_->size() : std::ssize(places_); }
  const std::filesystem::path& path() const { return path_; }
  // Requires 0 <= index < size(). Throws like parse_record.
  io::Json record(int64_t index) const;
  // Returns "data/train.jsonl:17", for messages.
  std::string place(int64_t index) const;

 private:
  int64_t line_of(int64_t index) const;

  std::filesystem::path path_;
  RecordFormat format_;
  std::unique_ptr<TableFile> table_;  // for a table; the members below are for other files
  io::FileHandle file_;
  std::vector<RecordPlace> places_;
};

}  // namespace megalith::data

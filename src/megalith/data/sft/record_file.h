// Records of a data file: JSON lists, JSON lines and plain text, read piece by piece.
//
// Memory is bounded by the longest record, or 24 bytes a record for random access; files are never held as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megalith/io/file_io.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

enum class RecordFormat {
  kJson,  // a list of values, or one value a line
  kText,  // one record a line: {"text": line}
};

// The format that a file's extension names. Throws DataError for .parquet, .arrow, .csv and others, with the command
// that converts the file.
RecordFormat record_format(const std::filesystem::path& path);

// Where a record stands.
struct RecordPlace {
  uint64_t offset = 0;  // of its first byte
  uint64_t bytes = 0;
  int64_t line = 1;  // counted from 1
};

// Reads a file once, from the first record to the last. One thread.
class RecordScanner {
 public:
  // Throws DataError when the file cannot be read.
  explicit RecordScanner(const std::filesystem::path& path);

  // The next record's text; false at the end. Throws DataError, naming file and line, for a list that is not closed or
  // has something between or behind its records, and for a record of more than 256 MB.
  bool next(std::string& text, RecordPlace& place);

  const std::filesystem::path& path() const { return file_.path(); }
  RecordFormat format() const { return format_; }

 private:
  bool fill();  // reads more; false at the end of the file
  int peek();   // the next byte, or -1
  void skip();  // it is taken
  void skip_blanks();
  void begin();
  bool next_line(std::string& text, RecordPlace& place);
  bool next_element(std::string& text, RecordPlace& place);
  void take_value(std::string& text);
  void take_string(std::string& text);
  void take(std::string& text);  // one byte
  [[noreturn]] void fail(const std::string& problem) const;

  io::FileHandle file_;
  RecordFormat format_;
  std::string buffer_;
  size_t at_ = 0;              // in the buffer
  uint64_t buffer_start_ = 0;  // offset of the buffer in the file
  int64_t line_ = 1;
  bool begun_ = false, in_list_ = false, list_ended_ = false, first_element_ = true;
};

// The value that a record's text stands for; `place` in messages is "file:line". Throws DataError for what is no JSON
// object, and for text that is not UTF-8.
io::Json parse_record(const std::string& text, RecordFormat format, const std::filesystem::path& path, int64_t line);

// All records of a file by number. Immutable; any number of threads.
class RecordFile {
 public:
  // Reads the file once to find the records; their content is checked when they are asked for.
  explicit RecordFile(const std::filesystem::path& path);

  int64_t size() const { return std::ssize(places_); }
  const std::filesystem::path& path() const { return file_.path(); }
  // Requires 0 <= index < size(). Throws as parse_record.
  io::Json record(int64_t index) const;
  // "data/train.jsonl:17", for messages.
  std::string place(int64_t index) const;

 private:
  io::FileHandle file_;
  RecordFormat format_;
  std::vector<RecordPlace> places_;
};

}  // namespace megalith::data

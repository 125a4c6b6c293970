// CSV and TSV files (RFC 4180), as pandas reads them by default, but for types: text stays text.
#pragma once

#include <string_view>
#include <vector>

#include "megalith/data/table/table_reader.h"
#include "megalith/io/file_io.h"

namespace megalith::data {

// Cuts text into rows of fields, byte by byte.
//
// A field that begins with a quote ends at the next single one; two in a row are one, and delimiters and line ends
// between them are text. A quote elsewhere is a character like any other. A row ends with \n, \r\n or \r. Lines without
// anything but blanks are skipped.
class CsvParser {
 public:
  explicit CsvParser(char delimiter) : delimiter_(delimiter) {}

  // Takes the next byte. Returns true if it completes a row, whose fields are then in fields().
  bool feed(char byte);
  // Takes the bytes at the front of `bytes` that are neither a quote, a delimiter nor a line end, if the parser is
  // inside a field; returns how many. Faster than feed(), which takes them as well.
  size_t feed_plain(std::string_view bytes);
  // The text has ended: returns true if this completes a row. Must not be called inside quotes.
  bool finish();

  // The fields of the row that was completed; changes with the next byte.
  const std::vector<std::string>& fields() const { return fields_; }
  // Whether the next byte begins a row, unless it is a line end.
  bool at_row_start() const { return state_ == State::kRowStart; }
  bool inside_quotes() const { return state_ == State::kQuoted; }

 private:
  enum class State { kRowStart, kFieldStart, kUnquoted, kQuoted, kQuoteInQuoted };
  void start_row();
  bool end_row();
  // A byte outside of quotes; true if it ends the row.
  bool feed_unquoted(char byte);

  char delimiter_;
  State state_ = State::kRowStart;
  std::vector<std::string> fields_;
  bool row_has_quotes_ = false;
};

// The names in the first row of a file, and how a row becomes an object with them.
class CsvHeader {
 public:
  CsvHeader() = default;
  // A column without a name is called "Unnamed: N", as in pandas, N counted from 0. Throws a DataError, with `place`,
  // for two columns of one name.
  CsvHeader(const std::vector<std::string>& names, const std::string& place);
  // Writes {"name": "text", …}. Empty and missing fields are null. Throws a DataError, with `place`, if there are more
  // fields than names.
  void write_json(const std::vector<std::string>& fields, const std::string& place, std::string& text) const;

 private:
  std::vector<std::string> keys_;  // as JSON, with their colons
};

// The place of a row in its file.
struct CsvPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // without the line end
  int64_t line = 1;
};

// Reads a file sequentially, in pieces of 1 MB. Skips a byte order mark.
class CsvReader final : public TableReader {
 public:
  // Reads the header. Throws a DataError if there is none.
  CsvReader(const std::filesystem::path& path, char delimiter);

  bool next(std::string& text, int64_t& number) override;
  // Finds the next row without writing it; returns false at the end.
  bool next_place(CsvPlace& place);
  const CsvHeader& header() const { return header_; }

 private:
  bool next_row(CsvPlace& place);
  void check_length(const CsvPlace& place) const;
  bool fill();  // reads more; false at the end of the file
  std::string words(int64_t line) const;
  [[noreturn]] void fail(int64_t line, const std::string& problem) const;

  io::FileHandle file_;
  CsvParser parser_;
  CsvHeader header_;
  std::string buffer_;
  size_t at_ = 0;              // position in the buffer
  uint64_t buffer_start_ = 0;  // offset of the buffer in the file
  int64_t line_ = 1;
  bool after_return_ = false;  // the last byte was \r, which with a \n after it is one line end
};

// The rows of a file by number. Memory: 24 bytes per row.
class CsvFile final : public TableFile {
 public:
  CsvFile(const std::filesystem::path& path, char delimiter);

  int64_t size() const override { return std::ssize(places_); }
  std::string text(int64_t index) const override;
  int64_t number(int64_t index) const override { return places_.at(static_cast<size_t>(index)).line; }

 private:
  io::FileHandle file_;
  char delimiter_;
  CsvHeader header_;
  std::vector<CsvPlace> places_;
};

}  // namespace megalith::data

// One pass finds the rows and, where they are wanted, their fields: the parser sees every byte in any case, since only
// it knows whether a line end is inside quotes. For access by number the bytes of a row are parsed again.
#include "megalith/data/table/csv_file.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/data/read_at_internal.h"
#include "megalith/data/table/json_string_internal.h"
#include "megalith/io/json_text.h"

namespace megalith::data {
namespace {

constexpr size_t kCsvChunkBytes = size_t{1} << 20;       // bytes per read
constexpr uint64_t kMaxCsvRowBytes = uint64_t{1} << 28;  // bounds the memory for a file whose closing quote is missing

bool is_line_end(char byte) { return byte == '\n' || byte == '\r'; }

std::string csv_place(const std::filesystem::path& path, int64_t line) {
  return fmt::format("{}:{}", path.string(), line);
}

}  // namespace

void CsvParser::start_row() {
  fields_.clear();
  row_has_quotes_ = false;
  state_ = State::kFieldStart;
}

// Lines of blanks are skipped, as in pandas; "" in quotes is a row.
bool CsvParser::end_row() {
  state_ = State::kRowStart;
  return row_has_quotes_ || fields_.size() != 1 || fields_[0].find_first_not_of(" \t") != std::string::npos;
}

bool CsvParser::feed_unquoted(char byte) {
  if (byte == delimiter_) {
    state_ = State::kFieldStart;
    return false;
  }
  if (is_line_end(byte)) return end_row();
  state_ = State::kUnquoted;
  fields_.back() += byte;
  return false;
}

bool CsvParser::feed(char byte) {
  switch (state_) {
    case State::kRowStart:
      if (is_line_end(byte)) return false;  // also the \n of \r\n
      start_row();
      [[fallthrough]];
    case State::kFieldStart:
      fields_.emplace_back();
      if (byte != '"') return feed_unquoted(byte);
      row_has_quotes_ = true;
      state_ = State::kQuoted;
      return false;
    case State::kUnquoted:
      return feed_unquoted(byte);
    case State::kQuoted:
      if (byte == '"')
        state_ = State::kQuoteInQuoted;
      else
        fields_.back() += byte;
      return false;
    case State::kQuoteInQuoted:
      if (byte != '"') return feed_unquoted(byte);
      fields_.back() += byte;  // two quotes in a row
      state_ = State::kQuoted;
      return false;
  }
  return false;
}

size_t CsvParser::feed_plain(std::string_view bytes) {
  if (state_ != State::kUnquoted && state_ != State::kQuoted) return 0;
  size_t count = 0;
  while (count < bytes.size() && bytes[count] != '"' && bytes[count] != delimiter_ && !is_line_end(bytes[count]))
    ++count;
  fields_.back().append(bytes.substr(0, count));
  return count;
}

bool CsvParser::finish() {
  if (state_ == State::kRowStart) return false;
  if (state_ == State::kFieldStart) fields_.emplace_back();
  return end_row();
}

CsvHeader::CsvHeader(const std::vector<std::string>& names, const std::string& place) {
  for (size_t i = 0; i < names.size(); ++i) {
    std::string key;
    append_json_string(names[i].empty() ? fmt::format("Unnamed: {}", i) : names[i], key);
    key += ':';
    check<DataError>(std::ranges::find(keys_, key) == keys_.end(), "{}: two columns are called {}; rename one of them",
                     place, io::in_quotes(names[i]));
    keys_.push_back(std::move(key));
  }
}

void CsvHeader::write_json(const std::vector<std::string>& fields, const std::string& place, std::string& text) const {
  check<DataError>(fields.size() <= keys_.size(),
                   "{}: the row has {} fields, and the header names {} columns; put texts with delimiters in quotes",
                   place, fields.size(), keys_.size());
  text = "{";
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (i > 0) text += ',';
    text += keys_[i];
    if (i < fields.size() && !fields[i].empty())
      append_json_string(fields[i], text);
    else
      text += "null";
  }
  text += '}';
}

CsvReader::CsvReader(const std::filesystem::path& path, char delimiter)
    : file_(io::FileHandle::open_for_reading(path)), parser_(delimiter) {
  file_.size();  // throws if it is not a regular file
  fill();
  if (buffer_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // the byte order mark that Excel writes
  CsvPlace place;
  check<DataError>(next_row(place), "{} is empty; its first row must name the columns", path.string());
  header_ = CsvHeader(parser_.fields(), words(place.line));
}

std::string CsvReader::words(int64_t line) const { return csv_place(file_.path(), line); }

void CsvReader::fail(int64_t line, const std::string& problem) const {
  throw DataError(fmt::format("{}: {}", words(line), problem));
}

void CsvReader::check_length(const CsvPlace& place) const {
  if (place.bytes > kMaxCsvRowBytes)
    fail(place.line, fmt::format("a row of more than {} MB; is a closing quote missing?", kMaxCsvRowBytes >> 20));
}

bool CsvReader::fill() {
  buffer_start_ += buffer_.size();
  at_ = 0;
  buffer_.resize(kCsvChunkBytes);
  buffer_.resize(read_at(file_, buffer_start_, buffer_.data(), kCsvChunkBytes));
  return !buffer_.empty();
}

// Feeds the parser up to the end of a row. The row begins with the first byte that is not a line end; lines of
// blanks are only known at their end, so every line start sets the place again.
bool CsvReader::next_row(CsvPlace& place) {
  while (at_ < buffer_.size() || fill()) {
    if (const size_t plain = parser_.feed_plain(std::string_view(buffer_).substr(at_))) {
      at_ += plain;
      place.bytes = buffer_start_ + at_ - place.offset;
      check_length(place);
      if (std::exchange(after_return_, false)) ++line_;
      continue;
    }
    const char byte = buffer_[at_];
    const uint64_t offset = buffer_start_ + at_++;
    // Lines are counted before the byte is parsed, and a line end belongs to the line that it ends.
    if (after_return_ && byte != '\n') ++line_;
    after_return_ = byte == '\r';
    if (parser_.at_row_start()) place = {.offset = offset, .line = line_};
    place.bytes = offset - place.offset;
    if (byte == '\n') ++line_;
    if (parser_.feed(byte)) return true;
    check_length(place);
  }
  if (parser_.inside_quotes())
    fail(place.line, "the file ends inside quotes; it was cut off, or a closing quote is missing");
  place.bytes = buffer_start_ + at_ - place.offset;
  return parser_.finish();
}

bool CsvReader::next_place(CsvPlace& place) { return next_row(place); }

bool CsvReader::next(std::string& text, int64_t& number) {
  CsvPlace place;
  if (!next_row(place)) return false;
  number = place.line;
  header_.write_json(parser_.fields(), words(place.line), text);
  return true;
}

CsvFile::CsvFile(const std::filesystem::path& path, char delimiter)
    : file_(io::FileHandle::open_for_reading(path)), delimiter_(delimiter) {
  CsvReader reader(path, delimiter);
  header_ = reader.header();
  CsvPlace place;
  while (reader.next_place(place)) places_.push_back(place);
}

std::string CsvFile::text(int64_t index) const {
  const CsvPlace& place = places_.at(static_cast<size_t>(index));
  std::string row(place.bytes, '\0');
  check<DataError>(read_at(file_, place.offset, row.data(), row.size()) == row.size(),
                   "{} became shorter while it was being read", file_.path().string());
  CsvParser parser(delimiter_);
  for (const char byte : row) parser.feed(byte);
  parser.finish();
  std::string text;
  header_.write_json(parser.fields(), csv_place(file_.path(), place.line), text);
  return text;
}

}  // namespace megalith::data

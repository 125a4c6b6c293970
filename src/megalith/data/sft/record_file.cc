// A scanner that finds where records begin and end without parsing them: lines by their ends, elements of a JSON list
// by counting brackets outside strings. It reads the file in chunks, so a list of any size needs only the memory of its
// longest record. Records are parsed later, by the threads that encode them.
#include "megalith/data/sft/record_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/read_at_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::data {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;      // bytes per read
constexpr size_t kMaxRecordBytes = size_t{1} << 28;  // bounds the memory for a file that is not what it seems

bool is_blank(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

// The limit catches, for example, a list whose closing quote is missing.
std::string too_long() { return fmt::format("a record of more than {} MB", kMaxRecordBytes >> 20); }

}  // namespace

// By extension only: the content of a wrong file would give a much worse message.
RecordFormat record_format(const std::filesystem::path& path) {
  const std::string extension = to_lower(path.extension().string());
  if (extension == ".json" || extension == ".jsonl") return RecordFormat::kJson;
  if (extension == ".txt") return RecordFormat::kText;
  if (const auto table = table_format(path)) {
    switch (*table) {
      case TableFormat::kCsv:
        return RecordFormat::kCsv;
      case TableFormat::kTsv:
        return RecordFormat::kTsv;
      case TableFormat::kParquet:
        return RecordFormat::kParquet;
      case TableFormat::kArrow:
        return RecordFormat::kArrow;
    }
  }
  throw DataError(fmt::format(
      "{}: Megalith does not read files of type \"{}\"; give .json, .jsonl, .txt, .csv, .tsv, .parquet or .arrow",
      path.string(), extension));
}

RecordScanner::RecordScanner(const std::filesystem::path& path)
    : file_(io::FileHandle::open_for_reading(path)), format_(record_format(path)) {
  file_.size();  // throws if it is not a regular file
  if (table_format(path)) table_ = open_table(path);
}

void RecordScanner::fail(const std::string& problem) const {
  throw DataError(fmt::format("{}:{}: {}", path().string(), line_, problem));
}

// Replaces the buffer by the next chunk; callers have consumed all of the old one.
bool RecordScanner::fill() {
  buffer_start_ += buffer_.size();
  at_ = 0;
  buffer_.resize(kChunkBytes);
  buffer_.resize(read_at(file_, buffer_start_, buffer_.data(), kChunkBytes));
  return !buffer_.empty();
}

int RecordScanner::peek() {
  if (at_ == buffer_.size() && !fill()) return -1;
  return static_cast<unsigned char>(buffer_[at_]);
}

void RecordScanner::skip() {
  if (buffer_[at_] == '\n') ++line_;
  ++at_;
}

void RecordScanner::take(std::string& text) {
  if (text.size() == kMaxRecordBytes) fail(too_long());
  text += buffer_[at_];
  skip();
}

void RecordScanner::skip_blanks() {
  while (is_blank(peek())) skip();
}

// Blank lines between JSON records are skipped; in a text file every line is a record, even an empty one.
bool RecordScanner::next(std::string& text, RecordPlace& place) {
  if (table_) return table_->next(text, place.line);
  text.clear();
  if (format_ == RecordFormat::kText) return next_line(text, place);
  if (!begun_) begin();
  if (in_list_) return next_element(text, place);
  skip_blanks();
  return next_line(text, place);
}

// A file whose first character is '[' is a list; otherwise it has one value per line.
void RecordScanner::begin() {
  begun_ = true;
  skip_blanks();
  in_list_ = peek() == '[';
  if (in_list_) skip();
}

// Appends whole stretches of the buffer instead of single bytes: lines are the common case. A line may span chunks.
bool RecordScanner::next_line(std::string& text, RecordPlace& place) {
  if (peek() < 0) return false;
  place = {.offset = buffer_start_ + at_, .line = line_};
  while (peek() >= 0) {
    // find() is vectorized; a loop over peek() and skip() would be many times slower.
    const size_t end = buffer_.find('\n', at_);
    text.append(buffer_, at_, std::min(end, buffer_.size()) - at_);
    if (text.size() > kMaxRecordBytes) fail(too_long());
    at_ = std::min(end, buffer_.size());
    if (end != std::string::npos) break;
  }
  if (peek() == '\n') skip();
  if (text.ends_with('\r')) text.pop_back();
  place.bytes = text.size();
  return true;
}

// Reads one element of a list, with the comma before it. After the last one, only blanks may follow.
bool RecordScanner::next_element(std::string& text, RecordPlace& place) {
  skip_blanks();
  if (!list_ended_ && peek() != ']') {
    if (!std::exchange(first_element_, false)) {
      if (peek() != ',')
        fail(peek() < 0 ? "the list is not closed; the file was cut off" : "a comma is missing between records");
      skip();
      skip_blanks();
    }
    place = {.offset = buffer_start_ + at_, .line = line_};
    take_value(text);
    place.bytes = text.size();
    return true;
  }
  if (!std::exchange(list_ended_, true)) skip();
  skip_blanks();
  if (peek() >= 0) fail("something follows the end of the list");
  return false;
}

// Takes a whole value by its brackets and quotes. Whether it is valid JSON is found out when it is parsed.
void RecordScanner::take_value(std::string& text) {
  int depth = 0;
  while (true) {
    const int byte = peek();
    if (byte < 0) fail("the file ends inside a record; it was cut off");
    // A bare value (a number, a word) ends at a comma, a bracket or a blank; it is refused later, when it is parsed.
    if (depth == 0 && (byte == ',' || byte == ']' || (is_blank(byte) && !text.empty()))) break;
    if (byte == '"') {
      take_string(text);
    } else {
      depth += byte == '{' || byte == '[' ? 1 : byte == '}' || byte == ']' ? -1 : 0;
      take(text);
    }
    if (depth == 0 && (text.back() == '}' || text.back() == ']')) break;
  }
  if (text.empty()) fail("a record is missing between commas");
}

// Brackets and commas inside a string do not count, so it is taken as a whole.
void RecordScanner::take_string(std::string& text) {
  take(text);
  while (peek() != '"') {
    if (peek() < 0) fail("the file ends inside a text; it was cut off");
    if (peek() == '\\') take(text);  // the escaped character, which may be a quote, follows
    if (peek() >= 0) take(text);
  }
  take(text);
}

// A line of text becomes {"text": line}, so that all later steps see records.
io::Json parse_record(const std::string& text, RecordFormat format, const std::filesystem::path& path, int64_t line) {
  const std::string place = fmt::format("{}:{}", path.string(), line);
  if (format == RecordFormat::kText) {  // JSON is checked for UTF-8 by its parser
    const auto invalid = tokenizer::first_invalid_utf8(text);
    check<DataError>(!invalid, "{}: byte {} of the line is not valid UTF-8 text", place, invalid.value_or(0));
    return {{"text", text}};
  }
  io::Json record = io::parse_json(text, place);
  check<DataError>(record.is_object(), "{}: a record is {}; it must be an object with named columns", place,
                   io::json_in_words(record));
  return record;
}

// One pass over the file; for gigabytes of JSON it is bounded by the disk, since nothing is parsed.
RecordFile::RecordFile(const std::filesystem::path& path, const std::filesystem::path& scratch_folder,
                       const std::function<void(int64_t bytes)>& read)
    : path_(path), format_(record_format(path)) {
  if (table_format(path)) {
    table_ = open_table_by_number(path, scratch_folder);
    return;
  }
  file_ = io::FileHandle::open_for_reading(path);
  RecordScanner scanner(path);
  std::string text;
  RecordPlace place;
  uint64_t told = 0;  // bytes passed to `read`
  while (scanner.next(text, place)) {
    places_.push_back(place);  // only places: texts are read again on demand
    const uint64_t end = place.offset + place.bytes;
    if (!read || end - told < kChunkBytes) continue;
    read(static_cast<int64_t>(end - told));
    told = end;
  }
}

io::Json RecordFile::record(int64_t index) const {
  if (table_) return parse_record(table_->text(index), format_, path(), line_of(index));
  const RecordPlace& place = places_.at(static_cast<size_t>(index));
  std::string text(place.bytes, '\0');
  check<DataError>(read_at(file_, place.offset, text.data(), text.size()) == text.size(),
                   "{} became shorter while it was being read", path().string());
  return parse_record(text, format_, path(), place.line);
}

int64_t RecordFile::line_of(int64_t index) const {
  return table_ ? table_->number(index) : places_.at(static_cast<size_t>(index)).line;
}

std::string RecordFile::place(int64_t index) const { return fmt::format("{}:{}", path().string(), line_of(index)); }

}  // namespace megalith::data

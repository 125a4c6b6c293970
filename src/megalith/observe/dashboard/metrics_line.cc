// Two parsers: a hand-written one for flat objects with plain ASCII names, which is what Megalith writes, and
// nlohmann::json for everything else. The first needs no allocation per line; the dashboard has to read files of
// millions of lines.
#include "megalith/observe/dashboard/metrics_line.h"

#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

namespace megalith::observe {

namespace {

// A value without a number: drawn as a gap, and counted as not finite.
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Values that are words, including Python's extensions of JSON.
struct Word {
  std::string_view text;
  double meaning;
};
constexpr std::array<Word, 6> kWords{
    {{"null", kNone}, {"NaN", kNone}, {"Infinity", kNone}, {"-Infinity", kNone}, {"true", 1}, {"false", 0}}};

// The rest of a line that is being read.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool at_end() const { return at_ == end_; }
  // Skips blanks, then consumes `wanted` and returns true, or leaves it alone and returns false.
  bool take(char wanted) {
    skip_blanks();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  // Takes a string of plain ASCII without escapes; anything else is left to the general parser.
  bool take_name(std::string_view& name) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"') {
      const auto byte = static_cast<unsigned char>(*at_);
      if (byte < 0x20 || byte >= 0x80 || byte == '\\') return false;
      ++at_;
    }
    if (at_ == end_) return false;
    name = {begin, static_cast<size_t>(at_ - begin)};
    ++at_;
    return true;
  }
  // Strings, lists and objects are refused here, which sends the whole line to the general parser.
  bool take_value(double& value) {
    skip_blanks();
    if (at_ == end_) return false;
    if (is_digit(at_) || (*at_ == '-' && is_digit(at_ + 1))) return take_number(value);
    for (const Word& word : kWords)
      if (take_word(word.text)) {
        value = word.meaning;
        return true;
      }
    return false;
  }

 private:
  bool is_digit(const char* at) const { return at < end_ && *at >= '0' && *at <= '9'; }
  // from_chars reads the shortest form that nlohmann writes, without a locale. 1e999 is not an error but not finite.
  bool take_number(double& value) {
    const auto [stop, error] = std::from_chars(at_, end_, value);
    if (error == std::errc::result_out_of_range) value = kNone;
    at_ = stop;
    return error == std::errc() || error == std::errc::result_out_of_range;
  }
  bool take_word(std::string_view word) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  const char* at_;
  const char* end_;
};

}  // namespace

bool MetricsLine::parse(std::string_view line) {
  entries_.clear();
  if (parse_flat(line)) return true;
  entries_.clear();
  return parse_any(line);
}

// Gives up on anything unusual; parse_any then decides.
bool MetricsLine::parse_flat(std::string_view line) {
  Cursor rest(line);
  if (!rest.take('{')) return false;
  if (!rest.take('}')) {
    do {
      Entry entry;
      if (!rest.take_name(entry.first) || !rest.take(':') || !rest.take_value(entry.second)) return false;
      entries_.push_back(entry);
    } while (rest.take(','));
    if (!rest.take('}')) return false;
  }
  rest.skip_blanks();
  return rest.at_end();
}

bool MetricsLine::parse_any(std::string_view line) try {
  const io::Json object = io::parse_json(line, "a line");
  if (!object.is_object()) return false;
  names_.clear();
  names_.reserve(object.size());  // so that views of them stay valid
  for (const auto& [name, value] : object.items()) {
    if (!value.is_number() && !value.is_null() && !value.is_boolean()) continue;
    names_.push_back(name);
    const double number = value.is_null()      ? kNone
                          : value.is_boolean() ? (value.get<bool>() ? 1 : 0)
                                               : value.get<double>();
    entries_.emplace_back(names_.back(), number);
  }
  return true;
} catch (const DataError&) {
  return false;
}

}  // namespace megalith::observe

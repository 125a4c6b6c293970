// Strict parsing on top of nlohmann's SAX interface. The library alone would accept too much: it stops at a zero byte,
// skips a byte order mark, keeps the last of two equal keys and nests without a limit. So the bytes are checked
// first, and Builder assembles the value itself, with a stack of open lists and objects.
#include "megalith/io/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/json_words.h"

namespace megalith::io {
namespace {

// Longest piece of a file's text in a message.
constexpr size_t kShownBytes = 100;

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Returns the length in bytes of the UTF-8 character at the start of `text`; 0 if it is invalid (RFC 3629: no overlong
// forms, no surrogates, nothing above U+10FFFF).
size_t utf8_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || length > text.size()) return 0;
  // The second byte carries the limits: E0 and F0 would allow overlong forms, ED surrogates, F4 more than U+10FFFF.
  const unsigned lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (size_t i = 2; i < length; ++i)
    if (!is_continuation(text[i])) return 0;
  return length;
}

// The JSON parser takes a zero byte for the end of its input and skips a byte order mark, so both are rejected here.
void check_bytes(std::string_view text, const std::string& file_name) {
  check<DataError>(!text.starts_with("\xEF\xBB\xBF"),
                   "{}: starts with a byte order mark; save it as plain UTF-8 without one", file_name);
  for (size_t at = 0; at < text.size();) {
    const size_t length = text[at] == '\0' ? 0 : utf8_character(text.substr(at));
    check<DataError>(length > 0, "{}: byte {} (0x{:02x}) is not valid UTF-8 text; the file is damaged or is not JSON",
                     file_name, at, static_cast<unsigned char>(text[at]));
    at += length;
  }
}

// Cuts at a character boundary.
std::string shortened(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && is_continuation(text[limit])) --limit;
  return text.substr(0, limit) + "…";
}

// Invalid UTF-8 is replaced, since a message must never fail.
std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Builds the value while the parser runs. Callbacks return false to stop; `error` then says why.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return open(); }
  bool start_array(size_t /*size*/) override { return open(); }

  bool key(string_t& value) override {
    open_.back().keys.push_back(std::move(value));
    return true;
  }

  bool end_object() override {
    Level level = close();
    if (const std::string* twice = duplicate(level.keys)) {
      error_ = fmt::format("{} appears twice in the same object; keep one", in_quotes(path() + *twice));
      return false;
    }
    // Appends to the vector under the map: the map's own insertion would search all keys, n² for n of them.
    Json::object_t object;
    object.reserve(level.keys.size());
    for (size_t i = 0; i < level.keys.size(); ++i)
      object.emplace_back(std::move(level.keys[i]), std::move(level.values[i]));
    return add(std::move(object));
  }

  bool end_array() override { return add(Json(std::move(close().values))); }

  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    const std::string text(without_exception_name(error.what()));
    error_ = fmt::format("not valid JSON: {}", shortened(text, 3 * kShownBytes));
    return false;
  }

  const std::string& error() const { return error_; }
  Json take() { return std::move(root_); }

 private:
  // A list or object that is still open.
  struct Level {
    std::vector<std::string> keys;  // empty for a list; the last one may still lack its value
    Json::array_t values;
  };

  // Puts a finished value into the innermost open list or object.
  bool add(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else
      open_.back().values.push_back(std::move(value));
    return true;
  }
  bool open() {
    open_.emplace_back();
    if (open_.size() <= kMaxJsonDepth) return true;
    error_ = fmt::format("lists and objects are nested more than {} deep", kMaxJsonDepth);
    return false;
  }
  Level close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    return level;
  }
  // Returns "a.b." for the objects that are open.
  std::string path() const {
    std::string text;
    for (const Level& level : open_)
      if (!level.keys.empty()) text += level.keys.back() + ".";
    return text;
  }
  // Sorts pointers to find equal neighbors: n log n, where comparing all pairs would take n².
  static const std::string* duplicate(const std::vector<std::string>& keys) {
    std::vector<const std::string*> sorted;
    sorted.reserve(keys.size());
    for (const std::string& key : keys) sorted.push_back(&key);
    std::ranges::sort(sorted, {}, [](const std::string* key) -> const std::string& { return *key; });
    const auto found = std::ranges::adjacent_find(sorted, [](const auto* a, const auto* b) { return *a == *b; });
    return found == sorted.end() ? nullptr : *found;
  }

  std::vector<Level> open_;
  Json root_;
  std::string error_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& file_name) {
  check_bytes(text, file_name);
  Builder builder;
  const bool complete = Json::sax_parse(text, &builder);
  check<DataError>(complete, "{}: {}", file_name, builder.error());
  return builder.take();
}

std::string in_quotes(std::string_view text) {
  // Cuts before quoting: a name may be as long as the file.
  const bool cut = text.size() > kShownBytes;
  std::string shown(text.substr(0, kShownBytes));
  if (cut)
    while (!shown.empty() && is_continuation(text[shown.size()])) shown.pop_back();
  return dumped(Json(cut ? shown + "…" : shown));
}

std::string json_in_words(const Json& value) {
  const char* kind = value.is_string()           ? "a string"
                     : value.is_boolean()        ? "a boolean"
                     : value.is_number_integer() ? "an integer"
                     : value.is_number()         ? "a number"
                     : value.is_array()          ? "a list"
                     : value.is_object()         ? "an object"
                                                 : nullptr;
  if (kind == nullptr) return "null";
  const std::string text =
      value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : shortened(dumped(value), kShownBytes);
  return fmt::format("{} ({})", text, kind);
}

}  // namespace megalith::io

// Filters that take a text, with the names, parameters and defaults of jinja2's filters.py.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/text_search.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

// Makes a filter of a function on texts. Any input is converted to a text first, as jinja2 does.
template <std::string (*convert)(std::string_view)>
Value convert_filter(Evaluator& e, const Value& input, const Arguments&) {
  return e.runtime().text(convert(to_text(e, input)));
}

// jinja2's |title, which is not str.title(): it splits at whitespace, hyphens and opening brackets only, so that
// "it's o'clock" becomes "It's O'clock" instead of "It'S O'Clock".
std::string title_of(std::string_view text) {
  std::string out, word;
  const auto finish = [&] {
    if (!word.empty()) out += python_capitalize(word);
    word.clear();
  };
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const std::string_view character = text.substr(at, utf8_length(text[at]));
    const bool cuts = is_python_space(code_point_at(text, at)) || std::strchr("-({[<", character[0]) != nullptr;
    if (cuts) finish();
    (cuts ? out : word) += character;
  }
  finish();
  return out;
}

// The five replacements of markupsafe.escape, quotes as numbers.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// urllib.parse.quote: bytes of UTF-8 outside the unreserved characters and "/" become %XX. "a b/é" -> "a%20b/%C3%A9".
std::string url_encoded(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~/";
  std::string out;
  for (const char c : text)
    out += kPlain.find(c) != kPlain.npos ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

std::string unchanged(std::string_view text) { return std::string(text); }

// Returns the input of a filter that takes only texts.
const std::string& text_input(Evaluator& e, const Value& input, std::string_view filter) {
  if (input.is_undefined()) e.runtime().fail(input.undefined_message());
  if (!input.is_string()) e.runtime().fail(fmt::format("{}: '{}' is not a text", filter, input.type_name()));
  return input.as_text();
}

// jinja2 also encodes mappings and pairs as a query; chat templates never need one, so those fail with a message.
Value urlencode_filter(Evaluator& e, const Value& input, const Arguments&) {
  if (input.is(Value::Kind::kSequence) || input.is(Value::Kind::kDict)) text_input(e, input, "urlencode");
  return e.runtime().text(url_encoded(to_text(e, input)));
}

// trim(chars): strips whitespace, or any of the given characters, from both ends.
Value trim_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "trim", arguments, {"chars"});
  const auto characters = bound.given(0) ? std::optional<std::string_view>(bound.text(0)) : std::nullopt;
  return e.runtime().text(std::string(strip(to_text(e, input), characters, Side::kBoth)));
}

// The result is charged before it is built: a replacement inside a loop can grow a text exponentially.
Value replace_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "replace", arguments, {"old", "new", "count"}, 2);
  const std::string text = to_text(e, input), old = to_text(e, bound.at(0)), with = to_text(e, bound.at(1));
  e.runtime().pay_bytes(text.size() + occurrences(text, old) * with.size());
  return e.runtime().text(replaced(text, old, with, bound.integer_or(2, -1)));
}

// Empty lines are not indented unless `blank` is set; the first line only with `first`.
Value indent_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "indent", arguments, {"width", "first", "blank"});
  const std::string indent =
      bound.given(0) && bound.at(0).is_string()
          ? bound.text(0)
          : std::string(static_cast<size_t>(std::clamp<int64_t>(bound.integer_or(0, 4), 0, 10'000)), ' ');
  // jinja2 appends a newline before it splits, so a text that ends in one keeps it.
  const std::string text = text_input(e, input, "indent") + "\n";
  const bool blank = bound.flag(2, false);
  std::string out;
  const auto lines = python_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += indent;
    e.runtime().pay_bytes(indent.size() + lines[i].size());
    out += lines[i];
  }
  return e.runtime().text(bound.flag(1, false) ? indent + out : out);
}

Value center_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "center", arguments, {"width"});
  const int64_t width = bound.integer_or(0, 80);
  e.runtime().pay_bytes(static_cast<size_t>(std::max<int64_t>(width, 0)));
  return e.runtime().text(padded(to_text(e, input), width, " ", Alignment::kCenter));
}

// truncate(length, killwords, end, leeway): "foo bar baz qux"|truncate(9) -> "foo...", since a word is not cut unless
// `killwords` is set. The end counts toward the length.
Value truncate_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::string text = text_input(e, input, "truncate"), end = bound.text_or(2, "...");
  const int64_t limit = bound.integer_or(0, 255), leeway = bound.integer_or(3, 5);
  const std::vector<size_t> offsets = character_offsets(text);
  const auto size = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t kept = limit - static_cast<int64_t>(code_points(end));
  if (kept < 0 || leeway < 0)
    e.runtime().fail("truncate(): length is less than that of the end, or leeway is negative");
  // A little longer than the limit is not worth cutting.
  if (size - leeway <= limit) return e.runtime().text(text);
  std::string start = text.substr(0, offsets[static_cast<size_t>(kept)]);
  if (!bound.flag(1, false)) start = start.substr(0, start.rfind(' '));
  return e.runtime().text(start + end);
}

// Counts the matches of \w+ in the text.
Value wordcount_filter(Evaluator& e, const Value& input, const Arguments&) {
  int64_t words = 0;
  bool in_word = false;
  const std::string text = to_text(e, input);
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const std::string_view character = std::string_view(text).substr(at, utf8_length(text[at]));
    const bool is_word = is_all(character, CharacterClass::kAlphanumeric) || character == "_";
    words += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return Value::integer(words);
}

// "%s of %d"|format(a, b), or "%(x)s"|format(x=a).
Value format_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    e.runtime().fail("format(): either positional or named arguments, not both");
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(name, value);
  return e.runtime().text(
      printf_text(e, to_text(e, input),
                  named.entries().empty() ? Value::tuple(arguments.positional) : Value::dict(std::move(named))));
}

constexpr NamedFilter kTextFilters[] = {{"upper", convert_filter<python_upper>},
                                        {"lower", convert_filter<python_lower>},
                                        {"capitalize", convert_filter<python_capitalize>},
                                        {"title", convert_filter<title_of>},
                                        {"escape", convert_filter<escaped>},
                                        {"e", convert_filter<escaped>},
                                        {"forceescape", convert_filter<escaped>},
                                        {"urlencode", urlencode_filter},
                                        {"safe", convert_filter<unchanged>},
                                        {"string", convert_filter<unchanged>},
                                        {"trim", trim_filter},
                                        {"replace", replace_filter},
                                        {"indent", indent_filter},
                                        {"center", center_filter},
                                        {"truncate", truncate_filter},
                                        {"wordcount", wordcount_filter},
                                        {"format", format_filter}};

}  // namespace

Filter find_text_filter(std::string_view name) {
  const auto found = std::ranges::find(kTextFilters, name, &NamedFilter::name);
  return found == std::end(kTextFilters) ? nullptr : found->call;
}

}  // namespace megalith::tokenizer::jinja

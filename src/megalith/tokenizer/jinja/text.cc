// Python's str, repr and json.dumps of values. Nested values are bounded by Runtime::Level, their size by pay_bytes.
// Chat templates print tools and tool calls with |tojson, and a model was trained on exactly that text, so separators,
// escapes and the digits of floats must be Python's to the byte.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

using Kind = Value::Kind;

// {'a': 1, 2: [3]}: keys and values by repr, in insertion order.
std::string dict_repr(Evaluator& evaluator, const Dict& dict) {
  std::string text = "{";
  for (const auto& [key, value] : dict.entries()) {
    if (text.size() > 1) text += ", ";
    text += to_repr(evaluator, key) + ": " + to_repr(evaluator, value);
  }
  return text + "}";
}

// Python prints ranges and dictionary views by their type; a generator has no text.
std::string sequence_repr(Evaluator& evaluator, const Value& value) {
  const Sequence& sequence = value.as_sequence();
  if (!sequence.has_length())
    evaluator.runtime().fail("a generator cannot be printed; add |list or |join after the filter");
  if (sequence.kind == Sequence::Kind::kRange) {
    const auto& items = sequence.items;
    // A range is stored as its numbers, so its arguments are recovered from them: 0, 2, 4 prints as range(0, 6, 2). The
    // stop need not be the one that was written (Python prints range(0, 5, 2) for it), but the numbers are the same.
    const auto at = [&](size_t i) { return *items[i].whole_number(); };
    if (items.empty()) return "range(0, 0)";
    const int64_t step = items.size() > 1 ? at(1) - at(0) : 1;
    const std::string end = fmt::format("range({}, {}", at(0), at(items.size() - 1) + step);
    return step == 1 ? end + ")" : fmt::format("{}, {})", end, step);
  }
  const bool is_tuple = sequence.kind == Sequence::Kind::kTuple;
  std::string text;
  for (const Value& item : sequence.items) {
    if (!text.empty()) text += ", ";
    text += to_repr(evaluator, item);
  }
  if (is_tuple) return "(" + text + (sequence.items.size() == 1 ? ",)" : ")");
  // Views have their type around the list: dict_keys(['a']).
  text = "[" + text + "]";
  return sequence.kind == Sequence::Kind::kList ? text : fmt::format("{}({})", value.type_name(), text);
}

// json.dumps with the separators and indentation of a style: {"a": 1, "b": [true, null]}. Like Python's encoder it
// accepts lists and tuples but refuses generators, ranges and undefined values, and writes NaN and Infinity as words.
class JsonWriter {
 public:
  JsonWriter(Evaluator& evaluator, const JsonStyle& style) : evaluator_(evaluator), style_(style) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, size_t depth) {
    const Runtime::Level level(evaluator_.runtime());
    evaluator_.runtime().step();
    switch (value.kind()) {
      case Kind::kString:
        return write_text(value.as_text());
      case Kind::kDict:
        return write_dict(value.as_dict(), depth);
      case Kind::kSequence:
        if (value.as_sequence().kind == Sequence::Kind::kList || value.as_sequence().kind == Sequence::Kind::kTuple)
          return write_list(value.as_sequence().items, depth);
        break;
      case Kind::kUndefined:
      case Kind::kObject:
        break;
      default:
        out_ += scalar(value);
        return;
    }
    evaluator_.runtime().fail(fmt::format("object of type {} is not JSON serializable{}", value.type_name(),
                                          value.is_undefined() ? ": " + value.undefined_message() : ""));
  }

  // None, numbers and bools. Called for keys, too: json.dumps turns {1: 2} into {"1": 2}.
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is(Kind::kBool)) return value.as_bool() ? "true" : "false";
    if (const auto whole = value.whole_number()) return std::to_string(*whole);
    const double number = value.as_float();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return python_repr(number);
  }

  // Starts a line of an indented document; without an indent everything stays on one line.
  void new_line(size_t depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (size_t i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  void write_list(const std::vector<Value>& items, size_t depth) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      write(items[i], depth + 1);
    }
    new_line(depth);
    out_ += ']';
  }

  void write_dict(const Dict& dict, size_t depth) {
    if (dict.entries().empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    // Sorted through pointers: the dictionary is immutable, and copies of entries would touch the counters of shared
    // values. Keys of different types do not compare, and `less` fails for them as Python does.
    if (style_.sort_keys)
      std::ranges::stable_sort(entries,
                               [&](const auto* a, const auto* b) { return less(evaluator_, a->first, b->first); });
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      write_key(entries[i]->first);
      out_ += style_.key_separator;
      write(entries[i]->second, depth + 1);
    }
    new_line(depth);
    out_ += '}';
  }

  // JSON knows only texts as keys. Scalars are converted, and everything else is an error.
  void write_key(const Value& key) {
    if (key.is_string()) return write_text(key.as_text());
    if (!key.is_none() && !key.is_number())
      evaluator_.runtime().fail(fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    out_ += '"' + scalar(key) + '"';
  }

  void write_text(const std::string& text) {
    evaluator_.runtime().pay_bytes(text.size());
    out_ += '"';
    for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
      // Python's order of the tests: short escapes, then control characters, then all beyond ASCII if asked for.
      const char32_t c = code_point_at(text, at);
      // The characters with a short escape, and at the same index its letter.
      constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f";
      constexpr std::string_view kNames = "\"\\nrtbf";
      const size_t special = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : std::string_view::npos;
      if (special != std::string_view::npos) {
        out_ += '\\';
        out_ += kNames[special];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F)) {
        write_escape(c);
      } else {
        out_.append(text, at, utf8_length(text[at]));
      }
    }
    out_ += '"';
  }

  // \u00e9; characters beyond 16 bits become a surrogate pair: U+1F600 is \ud83d\ude00.
  void write_escape(char32_t c) {
    const auto code = static_cast<uint32_t>(c);
    if (code < 0x10000)
      out_ += fmt::format("\\u{:04x}", code);
    else
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
  }

  Evaluator& evaluator_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

// jinja2 prints an undefined value as nothing, which lets templates write {{ x }} for an optional x.
std::string to_text(Evaluator& evaluator, const Value& value) {
  if (value.is_string()) return value.as_text();
  if (value.is_undefined()) return "";
  return to_repr(evaluator, value);
}

std::string to_repr(Evaluator& evaluator, const Value& value) {
  Runtime& runtime = evaluator.runtime();
  const Runtime::Level level(runtime);
  std::string text;
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(*value.whole_number());
    case Kind::kFloat:
      return python_repr(value.as_float());
    case Kind::kString:
      text = python_repr(value.as_text());
      break;
    case Kind::kSequence:
      text = sequence_repr(evaluator, value);
      break;
    case Kind::kDict:
      text = dict_repr(evaluator, value.as_dict());
      break;
    // Python would print addresses of objects; the names alone are printed here, so that output is reproducible.
    case Kind::kObject:
      if (const auto* space = dynamic_cast<const Namespace*>(&value.as_object()))
        text = fmt::format("<Namespace {}>", dict_repr(evaluator, space->values()));
      else
        text = fmt::format("<{}>", value.type_name());
  }
  runtime.pay_bytes(text.size());
  return text;
}

std::string to_json(Evaluator& evaluator, const Value& value, const JsonStyle& style) {
  return JsonWriter(evaluator, style).run(value);
}

}  // namespace megalith::tokenizer::jinja

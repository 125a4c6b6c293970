// Python's two kinds of formatting, "%5.2f" % x and "{:>8}".format(x), on top of one Spec and one function that formats
// a value. Both parse their own syntax into a Spec:
//   "%-8.3f"      ->  align '<', width 8, precision 3, type 'f'
//   "{:*^12,.1%}" ->  fill '*', align '^', width 12, grouping ',', precision 1, type '%'
// Digits come from fmt, whose rules for f, e and g are those of C and of Python.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "megalith/base/text.h"
#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/text_search.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr int64_t kMaxWidth = 10'000;  // widths come from the template; larger ones would waste memory

// The format of one value, common to both kinds of formatting.
// A Spec is plain data, so the two parsers cannot differ in what a value looks like.
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '='; 0: numbers right, texts left
  char sign = '-';
  bool alternate = false;  // 0x, 0o, 0b
  char grouping = 0;       // ',' or '_'
  int64_t width = 0;
  std::optional<int64_t> precision;
  char type = 0;
};

// "1234567.5" -> "1,234,567.5": only the digits before the point are grouped.
std::string grouped(const std::string& digits, char separator) {
  std::string out;
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t i = 0; i < end; ++i) {
    if (i > 0 && (end - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(end);
}

// Returns the digits of |value|; the sign is added later.
std::string float_digits(double value, const Spec& spec) {
  // 6 is Python's default; more than 300 decimals of a double are zeros in all but the smallest numbers.
  const auto precision = static_cast<int>(std::min<int64_t>(spec.precision.value_or(6), 300));
  const double size = std::fabs(value);
  switch (spec.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", size, precision);
    case 'e':
      return fmt::format("{:.{}e}", size, precision);
    case 'E':
      return fmt::format("{:.{}E}", size, precision);
    case 'G':
      return fmt::format("{:.{}G}", size, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", size * 100, precision);
    case 'g':
      return fmt::format("{:.{}g}", size, std::max(precision, 1));
    default:
      return spec.precision ? fmt::format("{:.{}g}", size, std::max(precision, 1)) : python_repr(size);
  }
}

// Whole numbers of other types than these are decimal: 'd', 'n' and none.
std::string whole_digits(uint64_t size, const Spec& spec) {
  const std::string mark = spec.alternate ? std::string("0") + spec.type : "";
  switch (spec.type) {
    case 'x':
      return mark + fmt::format("{:x}", size);
    case 'X':
      return mark + fmt::format("{:X}", size);
    case 'o':
      return mark + fmt::format("{:o}", size);
    case 'b':
      return mark + fmt::format("{:b}", size);
    default:
      return std::to_string(size);
  }
}

// Pads sign and digits (or a text, with an empty sign) to the width. '=' puts the padding between the two.
std::string aligned(const std::string& sign, const std::string& body, const Spec& spec, bool is_number) {
  const char align = spec.align != 0 ? spec.align : is_number ? '>' : '<';
  if (align == '=')
    return sign + padded(body, spec.width - static_cast<int64_t>(sign.size()), spec.fill, Alignment::kRight);
  const std::string text = sign + body;
  if (align == '^') {
    // An odd number of fill characters has the extra one on the right.
    const int64_t missing = std::max<int64_t>(spec.width - static_cast<int64_t>(code_points(text)), 0);
    const std::string left = padded("", missing / 2, spec.fill, Alignment::kLeft);
    return padded(left + text, spec.width, spec.fill, Alignment::kLeft);
  }
  return padded(text, spec.width, spec.fill, align == '<' ? Alignment::kLeft : Alignment::kRight);
}

bool is_one_of(char c, std::string_view set) { return c != 0 && set.find(c) != set.npos; }

// Sign and digits are made apart, so that zeros can be filled in between them.
std::string number_text(Evaluator& e, const Value& value, const Spec& spec) {
  const auto number = value.number();
  if (!number) {
    if (value.is_undefined()) e.runtime().fail(value.undefined_message());
    e.runtime().fail(fmt::format("the format '{}' needs a number, not '{}'", spec.type, value.type_name()));
  }
  const bool negative = std::signbit(*number);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const auto whole = value.whole_number();
  const bool as_float = !whole || is_one_of(spec.type, "fFeEgG%");
  if (as_float && is_one_of(spec.type, "dxXobc"))
    e.runtime().fail(fmt::format("the format '{}' needs a whole number", spec.type));
  std::string digits =
      as_float
          ? float_digits(*number, spec)
          // The negation is done in unsigned arithmetic, where that of INT64_MIN is defined.
          : whole_digits(negative ? uint64_t{0} - static_cast<uint64_t>(*whole) : static_cast<uint64_t>(*whole), spec);
  if (spec.grouping != 0) digits = grouped(digits, spec.grouping);
  return aligned(sign, digits, spec, true);
}

// A bool without a type prints as text, all other numbers as numbers.
std::string formatted(Evaluator& e, const Value& value, const Spec& spec) {
  e.runtime().pay_bytes(static_cast<size_t>(std::max<int64_t>(spec.width, 0)));
  const bool wants_text = spec.type == 's' || (spec.type == 0 && !value.is_number());
  const bool plain_bool = value.is(Value::Kind::kBool) && spec.type == 0;
  if (!wants_text && !plain_bool) return number_text(e, value, spec);
  std::string text = to_text(e, value);
  if (spec.precision) {
    const std::vector<size_t> offsets = character_offsets(text);
    text.resize(offsets[std::min(static_cast<size_t>(*spec.precision), offsets.size() - 1)]);
  }
  return aligned("", text, spec, false);
}

// Reads a run of digits at `at`; std::nullopt when there is none.
// Width and precision; "*" for an argument is not supported, and no chat template uses it.
std::optional<int64_t> read_digits(Evaluator& e, std::string_view text, size_t& at) {
  const size_t begin = at;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  if (begin == at) return std::nullopt;
  const auto value = parse_int(text.substr(begin, at - begin));
  if (!value || *value > kMaxWidth) e.runtime().fail(fmt::format("a width or precision is more than {}", kMaxWidth));
  return value;
}

// [[fill]align][sign][#][0][width][,][.precision][type]
Spec read_spec(Evaluator& e, std::string_view text) {
  Spec spec;
  size_t at = 0;
  // A fill is any character, but only if an alignment follows; otherwise the first character may be one itself.
  const size_t first = text.empty() ? 0 : utf8_length(text[0]);
  if (text.size() > first && is_one_of(text[first], "<>^=")) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (!text.empty() && is_one_of(text[0], "<>^=")) {
    spec.align = text[at++];
  }
  const auto take = [&](std::string_view set) {
    return at < text.size() && is_one_of(text[at], set) ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  // "08" is short for fill '0' and align '='.
  if (take("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = read_digits(e, text, at).value_or(0);
  spec.grouping = take(",_");
  if (take(".") != 0) spec.precision = read_digits(e, text, at).value_or(0);
  spec.type = take("sdfFeEgGxXobc%n");
  if (at != text.size()) e.runtime().fail(fmt::format("invalid format specifier '{}'", text));
  return spec;
}

// Returns the value of "name.attribute[key]" or "0" in a replacement field.
// "{}" takes the next positional argument, "{1}" that one, "{x}" a named one; `next` counts the "{}" so far.
Value field_value(Evaluator& e, std::string_view name, const Arguments& arguments, size_t& next) {
  const size_t end = std::min(name.find_first_of(".["), name.size());
  const std::string head(name.substr(0, end));
  const auto number = head.empty() ? std::optional<int64_t>(static_cast<int64_t>(next++)) : parse_int(head);
  Value value;
  if (number) {
    if (*number < 0 || *number >= std::ssize(arguments.positional))
      e.runtime().fail(fmt::format("format(): replacement index {} is out of range", *number));
    value = arguments.positional[static_cast<size_t>(*number)];
  } else {
    const auto found = std::ranges::find(arguments.named, head, &std::pair<std::string, Value>::first);
    if (found == arguments.named.end()) e.runtime().fail(fmt::format("format(): there is no argument '{}'", head));
    value = found->second;
  }
  // Then ".attribute" and "[key]" in any number; a key of digits is an index.
  for (name.remove_prefix(end); !name.empty();) {
    const bool by_key = name[0] == '[';
    const size_t stop = by_key ? name.find(']') : std::min(name.find_first_of(".[", 1), name.size());
    if (stop == name.npos) e.runtime().fail("format(): ']' is missing");
    const std::string part(name.substr(1, stop - 1));
    const auto index = by_key ? parse_int(part) : std::nullopt;
    value = by_key ? e.subscript(value, index ? Value::integer(*index) : Value::text(part)) : e.attribute(value, part);
    name.remove_prefix(stop + (by_key ? 1 : 0));
  }
  return value;
}

}  // namespace

// {{ and }} stand for braces; !r and !s convert before formatting.
std::string format_text(Evaluator& e, const std::string& format, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < format.size();) {
    const char c = format[at];
    if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
      out += c;
      at += 2;
    } else if (c == '{') {
      const size_t end = format.find('}', at);
      if (end == format.npos) e.runtime().fail("format(): '}' is missing");
      std::string_view field = std::string_view(format).substr(at + 1, end - at - 1);
      const size_t colon = std::min(field.find(':'), field.size());
      const size_t mark = std::min(field.substr(0, colon).find('!'), colon);
      Value value = field_value(e, field.substr(0, mark), arguments, next);
      if (mark < colon) value = Value::text(field[mark + 1] == 'r' ? to_repr(e, value) : to_text(e, value));
      out += formatted(e, value, read_spec(e, colon < field.size() ? field.substr(colon + 1) : ""));
      at = end + 1;
    } else {
      if (c == '}') e.runtime().fail("format(): single '}' in the text");
      out += c;
      ++at;
    }
    e.runtime().pay_bytes(1);
  }
  return out;
}

namespace {

// Reads the conversions of a % format one after another.
class PrintfReader {
 public:
  // "%s" % (a, b) has two values, "%s" % [a, b] one: only a tuple is taken apart.
  PrintfReader(Evaluator& e, const std::string& format, const Value& values) : e_(e), format_(format), values_(values) {
    const bool is_tuple = values.is(Value::Kind::kSequence) && values.as_sequence().kind == Sequence::Kind::kTuple;
    items_ = is_tuple ? values.as_sequence().items : std::vector<Value>{values};
  }

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      if (c == '%')
        out += conversion();
      else
        out += c;
    }
    // Python's rule: values that are left are an error, unless they might have been meant for %(name)s.
    const bool may_be_left = values_.is(Value::Kind::kDict) || (values_.is(Value::Kind::kSequence) &&
                                                                values_.as_sequence().kind == Sequence::Kind::kList);
    if (!by_name_ && next_ < items_.size() && !may_be_left)
      e_.runtime().fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  // Reads what follows a "%": [(name)][flags][width][.precision]type.
  std::string conversion() {
    const std::optional<Value> named = named_value();
    Spec spec = read_flags();
    spec.width = read_digits(e_, format_, at_).value_or(0);
    if (at_ < format_.size() && format_[at_] == '.') spec.precision = read_digits(e_, format_, ++at_).value_or(0);
    if (at_ >= format_.size()) e_.runtime().fail("incomplete format");
    spec.type = format_[at_++];
    if (spec.type == '%') return "%";
    if (!is_one_of(spec.type, "srdifFeEgGxXo"))
      e_.runtime().fail(fmt::format("unsupported format character '{}'", spec.type));
    if (!named && next_ >= items_.size()) e_.runtime().fail("not enough arguments for format string");
    return converted(named ? *named : items_[next_++], spec);
  }

  // Reads "(name)"; std::nullopt when it is not there.
  std::optional<Value> named_value() {
    if (at_ >= format_.size() || format_[at_] != '(') return std::nullopt;
    const size_t end = format_.find(')', at_);
    if (end == format_.npos || !values_.is(Value::Kind::kDict))
      e_.runtime().fail("format requires a mapping for '%(name)s'");
    const Value value = e_.subscript(values_, Value::text(format_.substr(at_ + 1, end - at_ - 1)));
    by_name_ = true;
    at_ = end + 1;
    return value;
  }

  Spec read_flags() {
    Spec spec;
    bool zero = false;
    for (; at_ < format_.size() && is_one_of(format_[at_], "-+ #0"); ++at_) {
      const char flag = format_[at_];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || flag == ' ') spec.sign = flag;
      spec.alternate |= flag == '#';
      zero |= flag == '0';
    }
    if (zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    return spec;
  }

  // "%d" truncates floats, as |int does, and texts align to the right unless "-" is given: the opposite of str.format.
  std::string converted(Value value, Spec spec) {
    if (spec.type == 'i') spec.type = 'd';
    if (spec.type == 'd' && value.is(Value::Kind::kFloat)) value = e_.call_filter("int", value, {});
    if (spec.type == 'r' || spec.type == 's') {
      if (spec.type == 'r') value = Value::text(to_repr(e_, value));
      spec.type = 's';
      spec.fill = " ";
      if (spec.align != '<') spec.align = '>';
    }
    return formatted(e_, value, spec);
  }

  Evaluator& e_;
  const std::string& format_;
  const Value& values_;
  std::vector<Value> items_;
  size_t next_ = 0;  // index of the next item that a conversion takes
  bool by_name_ = false;
  size_t at_ = 0;
};

}  // namespace

std::string printf_text(Evaluator& e, const std::string& format, const Value& values) {
  return PrintfReader(e, format, values).run();
}

}  // namespace megalith::tokenizer::jinja

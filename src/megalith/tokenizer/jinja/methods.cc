// Methods of strings, lists and dictionaries, in tables by name. Only methods that do not change their object exist;
// positions and lengths count characters, as in Python, although texts are stored as UTF-8. Methods with variants
// (strip, lstrip, rstrip) are templates over the variant, so each name in the tables is a plain function.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/text_search.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

using Kind = Value::Kind;

struct NamedMethod {
  std::string_view name;
  Method call;
};

// A list of texts, each charged to the runtime.
Value list_of(Evaluator& e, const std::vector<std::string>& texts) {
  std::vector<Value> items;
  for (const std::string& text : texts) items.push_back(e.runtime().text(text));
  return e.runtime().list(std::move(items));
}

// The part of the text selected by the optional arguments start and end (bound i and i + 1), and the number of its
// first character.
struct Window {
  std::string_view text;
  int64_t first;
};
Window window(const std::string& text, const Bound& bound, size_t i) {
  if (!bound.given(i) && !bound.given(i + 1)) return {text, 0};
  const std::vector<size_t> offsets = character_offsets(text);
  const auto size = static_cast<int64_t>(offsets.size()) - 1;
  // Python's rule for slices: negative positions count from the end, and what is outside is moved to the nearest end.
  const auto clamped = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? std::max(at, -size) + size : at, 0, size);
  };
  const int64_t begin = clamped(bound.integer_or(i, 0));
  const int64_t end = std::max(begin, clamped(bound.integer_or(i + 1, size)));
  const size_t from = offsets[static_cast<size_t>(begin)];
  return {std::string_view(text).substr(from, offsets[static_cast<size_t>(end)] - from), begin};
}

// ------------------------------------------------------------------------------------------------------------- strings

// Methods without arguments; passing one fails as in Python.
template <std::string (*convert)(std::string_view)>
Value converted_text(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound none(e.runtime(), "the method", arguments, {});
  return e.runtime().text(convert(self.as_text()));
}

template <Side side>
Value stripped(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "strip", arguments, {"chars"});
  const auto characters = bound.given(0) ? std::optional<std::string_view>(bound.text(0)) : std::nullopt;
  return e.runtime().text(std::string(strip(self.as_text(), characters, side)));
}

// "a,b,c".split(",", 1) -> ["a", "b,c"]; rsplit -> ["a,b", "c"].
template <bool from_right>
Value split_method(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "split", arguments, {"sep", "maxsplit"});
  const auto separator = bound.given(0) ? std::optional<std::string_view>(bound.text(0)) : std::nullopt;
  if (separator && separator->empty()) e.runtime().fail("split(): empty separator");
  e.runtime().pay_bytes(self.as_text().size());
  return list_of(e, split_text(self.as_text(), separator, bound.integer_or(1, -1), from_right));
}

Value split_lines(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "splitlines", arguments, {"keepends"});
  std::vector<std::string> lines;
  for (const std::string_view line : python_lines(self.as_text(), bound.flag(0, false))) lines.emplace_back(line);
  return list_of(e, lines);
}

// The argument may be a tuple, of which any part may match: x.startswith(("a", "b")).
template <bool at_end>
Value starts_or_ends(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), at_end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"}, 1);
  const std::string_view text = window(self.as_text(), bound, 1).text;
  const auto fits = [&](const std::string& part) { return at_end ? text.ends_with(part) : text.starts_with(part); };
  if (!bound.at(0).is(Kind::kSequence)) return Value::boolean(fits(bound.text(0)));
  return Value::boolean(std::ranges::any_of(
      bound.at(0).as_sequence().items, [&](const Value& part) { return part.is_string() && fits(part.as_text()); }));
}

// find, rfind, index and rindex: positions count characters, not bytes.
template <bool from_right, bool must_be>
Value find_method_of_text(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "find", arguments, {"sub", "start", "end"}, 1);
  const Window part = window(self.as_text(), bound, 1);
  const size_t at = from_right ? part.text.rfind(bound.text(0)) : part.text.find(bound.text(0));
  if (at != std::string::npos)
    return Value::integer(part.first + static_cast<int64_t>(code_points(part.text.substr(0, at))));
  if (must_be) e.runtime().fail("index(): substring not found");
  return Value::integer(-1);
}

Value count_in_text(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "count", arguments, {"sub", "start", "end"}, 1);
  return Value::integer(static_cast<int64_t>(occurrences(window(self.as_text(), bound, 1).text, bound.text(0))));
}

// The size of the result is charged before it is built.
Value replace_method(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "replace", arguments, {"old", "new", "count"}, 2);
  // An upper bound: the limit on replacements is not considered.
  const size_t growth = occurrences(self.as_text(), bound.text(0)) * bound.text(1).size();
  e.runtime().pay_bytes(self.as_text().size() + growth);
  return e.runtime().text(replaced(self.as_text(), bound.text(0), bound.text(1), bound.integer_or(2, -1)));
}

// ", ".join(list): unlike |join it refuses items that are not texts, as Python does.
Value join_method(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "join", arguments, {"iterable"}, 1);
  std::string text;
  bool first = true;
  for (const Value& item : e.iterate(bound.at(0))) {
    if (!item.is_string())
      e.runtime().fail(
          fmt::format("join(): a str is expected, '{}' found; write |join for other values", item.type_name()));
    if (!std::exchange(first, false)) text += self.as_text();
    e.runtime().pay_bytes(self.as_text().size() + item.as_text().size());
    text += item.as_text();
  }
  return e.runtime().text(std::move(text));
}

Value format_method(Evaluator& e, const Value& self, const Arguments& arguments) {
  return e.runtime().text(format_text(e, self.as_text(), arguments));
}

// Without a match the text is in the first part, or with rpartition in the last.
template <bool from_right>
Value partition(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "partition", arguments, {"sep"}, 1);
  const std::string& text = self.as_text();
  const std::string& separator = bound.text(0);
  if (separator.empty()) e.runtime().fail("partition(): empty separator");
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  const auto parts =
      at == std::string::npos
          ? from_right ? std::array<std::string, 3>{"", "", text} : std::array<std::string, 3>{text, "", ""}
          : std::array<std::string, 3>{text.substr(0, at), separator, text.substr(at + separator.size())};
  return Value::tuple({e.runtime().text(parts[0]), e.runtime().text(parts[1]), e.runtime().text(parts[2])});
}

template <bool at_end>
Value without_affix(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), at_end ? "removesuffix" : "removeprefix", arguments, {"affix"}, 1);
  std::string_view text = self.as_text();
  const std::string& affix = bound.text(0);
  if (at_end ? text.ends_with(affix) : text.starts_with(affix))
    text = at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  return e.runtime().text(std::string(text));
}

// The fill may have up to four bytes per character, hence the factor in the charge.
template <Alignment alignment>
Value padded_method(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "just", arguments, {"width", "fillchar"}, 1);
  e.runtime().pay_bytes(static_cast<size_t>(std::max<int64_t>(bound.integer(0), 0)) * 4);
  return e.runtime().text(padded(self.as_text(), bound.integer(0), bound.text_or(1, " "), alignment));
}

// "-7".zfill(4) -> "-007": zeros go between the sign and the digits.
Value zero_filled(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "zfill", arguments, {"width"}, 1);
  e.runtime().pay_bytes(static_cast<size_t>(std::max<int64_t>(bound.integer(0), 0)));
  std::string_view text = self.as_text();
  const std::string sign(text.starts_with('-') || text.starts_with('+') ? text.substr(0, 1) : "");
  text.remove_prefix(sign.size());
  return e.runtime().text(sign +
                          padded(text, bound.integer(0) - static_cast<int64_t>(sign.size()), "0", Alignment::kRight));
}

// str.isalpha and the like; an empty text gives false, except for isascii.
template <CharacterClass kind>
Value is_class(Evaluator&, const Value& self, const Arguments&) {
  return Value::boolean(is_all(self.as_text(), kind));
}
Value is_upper_method(Evaluator&, const Value& self, const Arguments&) {
  return Value::boolean(is_upper_text(self.as_text()));
}
Value is_lower_method(Evaluator&, const Value& self, const Arguments&) {
  return Value::boolean(is_lower_text(self.as_text()));
}

constexpr NamedMethod kTextMethods[] = {
    {"upper", converted_text<python_upper>},
    {"lower", converted_text<python_lower>},
    {"title", converted_text<python_title>},
    {"capitalize", converted_text<python_capitalize>},
    {"swapcase", converted_text<python_swapcase>},
    {"strip", stripped<Side::kBoth>},
    {"lstrip", stripped<Side::kLeft>},
    {"rstrip", stripped<Side::kRight>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", split_lines},
    {"startswith", starts_or_ends<false>},
    {"endswith", starts_or_ends<true>},
    {"find", find_method_of_text<false, false>},
    {"rfind", find_method_of_text<true, false>},
    {"index", find_method_of_text<false, true>},
    {"rindex", find_method_of_text<true, true>},
    {"count", count_in_text},
    {"replace", replace_method},
    {"join", join_method},
    {"format", format_method},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"ljust", padded_method<Alignment::kLeft>},
    {"rjust", padded_method<Alignment::kRight>},
    {"center", padded_method<Alignment::kCenter>},
    {"zfill", zero_filled},
    {"isalpha", is_class<CharacterClass::kAlpha>},
    {"isdigit", is_class<CharacterClass::kDigit>},
    {"isdecimal", is_class<CharacterClass::kDigit>},
    {"isalnum", is_class<CharacterClass::kAlphanumeric>},
    {"isspace", is_class<CharacterClass::kSpace>},
    {"isascii", is_class<CharacterClass::kAscii>},
    {"isupper", is_upper_method},
    {"islower", is_lower_method},
};

// ------------------------------------------------------------------------------------------------- lists, dictionaries

Value index_in_list(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "index", arguments, {"value"}, 1);
  const auto& items = self.as_sequence().items;
  const auto found = std::ranges::find_if(items, [&](const Value& item) { return equal(item, bound.at(0)); });
  if (found == items.end()) e.runtime().fail(fmt::format("index(): {} is not in list", to_repr(e, bound.at(0))));
  return Value::integer(found - items.begin());
}

Value count_in_list(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "count", arguments, {"value"}, 1);
  return Value::integer(
      std::ranges::count_if(self.as_sequence().items, [&](const Value& item) { return equal(item, bound.at(0)); }));
}

// Values are immutable, so a copy is the value itself.
Value itself(Evaluator&, const Value& self, const Arguments&) { return self; }

constexpr NamedMethod kListMethods[] = {{"index", index_in_list}, {"count", count_in_list}, {"copy", itself}};

// d.get(key) is None for a missing key, not undefined.
Value get_method(Evaluator& e, const Value& self, const Arguments& arguments) {
  const Bound bound(e.runtime(), "get", arguments, {"key", "default"}, 1);
  const Value* found = self.as_dict().find(bound.at(0));
  return found ? *found : bound.value_or(1, Value());
}

// keys, values and items. Python's views follow later changes of the dictionary; here it cannot change.
template <Sequence::Kind kind>
Value view_method(Evaluator& e, const Value& self, const Arguments&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().entries())
    items.push_back(kind == Sequence::Kind::kKeys     ? key
                    : kind == Sequence::Kind::kValues ? value
                                                      : Value::tuple({key, value}));
  return e.runtime().sequence(kind, std::move(items));
}

constexpr NamedMethod kDictMethods[] = {{"get", get_method},
                                        {"keys", view_method<Sequence::Kind::kKeys>},
                                        {"values", view_method<Sequence::Kind::kValues>},
                                        {"items", view_method<Sequence::Kind::kItems>},
                                        {"copy", itself}};

template <size_t size>
Method find_in(const NamedMethod (&methods)[size], std::string_view name) {
  const auto found = std::ranges::find(methods, name, &NamedMethod::name);
  return found == std::end(methods) ? nullptr : found->call;
}

}  // namespace

// Ranges share the methods of lists. Dictionary views and generators have none.
Method find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find_in(kTextMethods, name);
  if (object.is(Kind::kDict)) return find_in(kDictMethods, name);
  if (object.is(Kind::kSequence) && object.as_sequence().has_elements()) return find_in(kListMethods, name);
  return nullptr;
}

// The methods that jinja2's immutable sandbox refuses.
bool changes_object(const Value& object, std::string_view name) {
  constexpr std::string_view kOfLists[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.is(Kind::kDict)) return std::ranges::find(kOfDicts, name) != std::end(kOfDicts);
  const bool is_list = object.is(Kind::kSequence) && object.as_sequence().kind == Sequence::Kind::kList;
  return is_list && std::ranges::find(kOfLists, name) != std::end(kOfLists);
}

}  // namespace megalith::tokenizer::jinja

// Filters that visit the elements of a value, by jinja2's filters.py. Filters that are generators in Python (map,
// select, batch, unique, …) return Kind::kGenerator: they are computed at once here, but behave alike (no length, no
// index, true even if empty), so a template that forgets |list fails in the same way.
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/text.h"
#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

using SequenceKind = Sequence::Kind;

// Follows "a.b.0", attributes and elements of elements, like make_attrgetter of jinja2. An integer is an element.
Value attribute_path(Evaluator& e, Value value, const Value& path, const Value& otherwise = Value()) {
  const auto step = [&](const Value& part) {
    value = e.subscript(value, part);
    if (value.is_undefined() && !otherwise.is_none()) value = otherwise;
  };
  if (!path.is_string()) {
    step(path);
    return value;
  }
  for (const std::string& part : split(path.as_text(), '.')) {
    const auto number = parse_int(part);
    step(number && *number >= 0 ? Value::integer(*number) : Value::text(part));
  }
  return value;
}

// Sorting and comparing ignore case unless told otherwise.
Value folded(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value::text(python_lower(value.as_text())) : value;
}

// Sorts by keys, stably; keys are computed once.
std::vector<Value> sorted_by(Evaluator& e, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  e.runtime().step(keyed.size() * 8);  // charges the comparisons in advance
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? less(e, b.first, a.first) : less(e, a.first, b.first);
  });
  std::vector<Value> items;
  for (auto& [key, value] : keyed) items.push_back(std::move(value));
  return items;
}

Value join_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "join", arguments, {"d", "attribute"});
  const std::string separator = bound.has(0) ? to_text(e, bound.at(0)) : "";
  std::string text;
  bool first = true;
  for (const Value& item : e.iterate(input)) {
    if (!std::exchange(first, false)) text += separator;
    const std::string part = to_text(e, bound.given(1) ? attribute_path(e, item, bound.at(1)) : item);
    e.runtime().pay_bytes(part.size() + separator.size());
    text += part;
  }
  return e.runtime().text(std::move(text));
}

Value list_filter(Evaluator& e, const Value& input, const Arguments&) { return e.runtime().list(e.iterate(input)); }

// Like the method items(), but an undefined input has no items instead of failing.
Value items_filter(Evaluator& e, const Value& input, const Arguments&) {
  if (input.is_undefined()) return e.runtime().sequence(SequenceKind::kGenerator, {});
  if (!input.is(Value::Kind::kDict)) e.runtime().fail("items: can only get item pairs from a mapping");
  std::vector<Value> items;
  for (const auto& [key, value] : input.as_dict().entries()) items.push_back(Value::tuple({key, value}));
  return e.runtime().sequence(SequenceKind::kGenerator, std::move(items));
}

Value first_filter(Evaluator& e, const Value& input, const Arguments&) {
  const std::vector<Value> items = e.iterate(input);
  return items.empty() ? Value::undefined("no first item, sequence was empty") : items.front();
}

// Python's reversed() refuses generators, so `last` of a |map fails in jinja2, too.
Value last_filter(Evaluator& e, const Value& input, const Arguments&) {
  if (input.is(Value::Kind::kSequence) && !input.as_sequence().has_length())
    e.runtime().fail("last: 'generator' object is not reversible; write |list before it");
  const std::vector<Value> items = e.iterate(input);
  return items.empty() ? Value::undefined("no last item, sequence was empty") : items.back();
}

// A text is reversed into a text, anything else into a generator.
Value reverse_filter(Evaluator& e, const Value& input, const Arguments&) {
  std::vector<Value> items = e.iterate(input);
  std::ranges::reverse(items);
  if (!input.is_string()) return e.runtime().sequence(SequenceKind::kGenerator, std::move(items));
  std::string text;
  for (const Value& item : items) text += item.as_text();
  return e.runtime().text(std::move(text));
}

// Several attributes separated by commas are compared as a list.
Value sort_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.flag(1, false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : e.iterate(input)) {
    if (!bound.given(2)) {
      keyed.emplace_back(folded(item, case_sensitive), item);
      continue;
    }
    std::vector<Value> keys;
    // "name,age" sorts by two attributes; a number (attribute=0) is one element.
    const std::vector<std::string> paths =
        bound.at(2).is_string() ? split(bound.text(2), ',') : std::vector<std::string>{""};
    for (const std::string& path : paths)
      keys.push_back(
          folded(attribute_path(e, item, bound.at(2).is_string() ? Value::text(path) : bound.at(2)), case_sensitive));
    keyed.emplace_back(Value::list(std::move(keys)), item);
  }
  return e.runtime().list(sorted_by(e, std::move(keyed), bound.flag(0, false)));
}

// Returns (key, value) pairs, sorted by either.
Value dictsort_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.text_or(1, "key");
  if (by != "key" && by != "value") e.runtime().fail("dictsort(): by must be 'key' or 'value'");
  if (!input.is(Value::Kind::kDict)) e.runtime().fail("dictsort: a mapping is expected");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.as_dict().entries())
    keyed.emplace_back(folded(by == "key" ? key : value, bound.flag(0, false)), Value::tuple({key, value}));
  return e.runtime().list(sorted_by(e, std::move(keyed), bound.flag(2, false)));
}

// Keeps the first of equal elements; the search in `seen` is charged.
Value unique_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "unique", arguments, {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> items;
  for (const Value& item : e.iterate(input)) {
    const Value key = folded(bound.given(1) ? attribute_path(e, item, bound.at(1)) : item, bound.flag(0, false));
    // Keys other than texts are searched for one by one.
    e.runtime().step(seen.entries().size() / 8);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    items.push_back(item);
  }
  return e.runtime().sequence(SequenceKind::kGenerator, std::move(items));
}

// min and max: the first of equal elements wins, as in Python, because only a strictly better one replaces it.
template <bool largest>
Value extreme_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const auto key = [&](const Value& item) {
    return folded(bound.given(1) ? attribute_path(e, item, bound.at(1)) : item, bound.flag(0, false));
  };
  const std::vector<Value> items = e.iterate(input);
  if (items.empty()) return Value::undefined("no aggregated item, sequence was empty");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i)
    if (largest ? less(e, key(items[best]), key(items[i])) : less(e, key(items[i]), key(items[best]))) best = i;
  return items[best];
}

// Adds from `start`, 0 by default, so it also works for lists with start=[].
Value sum_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "sum", arguments, {"attribute", "start"});
  Value total = bound.value_or(1, Value::integer(0));
  for (const Value& item : e.iterate(input))
    total = arithmetic(e, BinaryOperator::kAdd, total, bound.given(0) ? attribute_path(e, item, bound.at(0)) : item);
  return total;
}

// Rows of `linecount` elements; the last is filled up if a filler is given.
Value batch_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Bound bound(e.runtime(), "batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0);
  if (size < 1) e.runtime().fail("batch(): linecount must be at least 1");
  std::vector<Value> rows, row;
  for (const Value& item : e.iterate(input)) {
    row.push_back(item);
    if (std::ssize(row) == size) rows.push_back(e.runtime().list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    e.runtime().step(static_cast<size_t>(size));
    if (bound.given(1)) row.resize(static_cast<size_t>(size), bound.at(1));
    rows.push_back(e.runtime().list(std::move(row)));
  }
  return e.runtime().sequence(SequenceKind::kGenerator, std::move(rows));
}

// Returns the elements for map, select and reject: none for any value that is false.
std::vector<Value> iterate_if_true(Evaluator& e, const Value& input) {
  return input.truth() ? e.iterate(input) : std::vector<Value>();
}

// map(attribute=…) reads an attribute, map("name", …) calls a filter.
Value map_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  std::vector<Value> items;
  if (arguments.positional.empty()) {
    const Bound bound(e.runtime(), "map", {{}, arguments.named}, {"attribute", "default"}, 1);
    for (const Value& item : iterate_if_true(e, input))
      items.push_back(attribute_path(e, item, bound.at(0), bound.value_or(1, Value())));
  } else {
    if (!arguments.positional[0].is_string()) e.runtime().fail("map: the name of a filter is expected");
    // The first argument names the filter; the others are passed on to it.
    const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    for (const Value& item : iterate_if_true(e, input))
      items.push_back(e.call_filter(arguments.positional[0].as_text(), item, rest));
  }
  return e.runtime().sequence(SequenceKind::kGenerator, std::move(items));
}

// select, reject, selectattr, rejectattr: [attribute,] [test, arguments…].
template <bool wanted, bool by_attribute>
Value select_filter(Evaluator& e, const Value& input, const Arguments& arguments) {
  const size_t skip = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skip) e.runtime().fail("the filter needs the name of an attribute");
  const bool has_test = arguments.positional.size() > skip;
  // Without a test, elements are selected by their truth.
  if (has_test && !arguments.positional[skip].is_string()) e.runtime().fail("the filter needs the name of a test");
  const auto rest_begin = arguments.positional.begin() + static_cast<std::ptrdiff_t>(skip + (has_test ? 1 : 0));
  const Arguments rest{{rest_begin, arguments.positional.end()}, arguments.named};
  std::vector<Value> items;
  for (const Value& item : iterate_if_true(e, input)) {
    const Value value = by_attribute ? attribute_path(e, item, arguments.positional[0]) : item;
    const bool holds = has_test ? e.call_test(arguments.positional[skip].as_text(), value, rest) : value.truth();
    if (holds == wanted) items.push_back(item);
  }
  return e.runtime().sequence(SequenceKind::kGenerator, std::move(items));
}

constexpr NamedFilter kListFilters[] = {{"join", join_filter},
                                        {"list", list_filter},
                                        {"items", items_filter},
                                        {"first", first_filter},
                                        {"last", last_filter},
                                        {"reverse", reverse_filter},
                                        {"sort", sort_filter},
                                        {"dictsort", dictsort_filter},
                                        {"unique", unique_filter},
                                        {"min", extreme_filter<false>},
                                        {"max", extreme_filter<true>},
                                        {"sum", sum_filter},
                                        {"batch", batch_filter},
                                        {"map", map_filter},
                                        {"select", select_filter<true, false>},
                                        {"reject", select_filter<false, false>},
                                        {"selectattr", select_filter<true, true>},
                                        {"rejectattr", select_filter<false, true>}};

}  // namespace

// Lists first, then texts, then values; the three tables have no name in common.
Filter find_filter(std::string_view name) {
  const auto found = std::ranges::find(kListFilters, name, &NamedFilter::name);
  if (found != std::end(kListFilters)) return found->call;
  const Filter filter = find_text_filter(name);
  return filter != nullptr ? filter : find_value_filter(name);
}

}  // namespace megalith::tokenizer::jinja

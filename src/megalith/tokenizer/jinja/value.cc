// Values and dictionaries. The depth of nesting is computed when a container is made, so the limit on it costs nothing
// later; since values are immutable it cannot change.
#include "megalith/tokenizer/jinja/value.h"

#include <algorithm>

#include "megalith/tokenizer/jinja/runtime.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr size_t kManyKeys = 8;  // from here on, a table is faster than comparing with each key

}  // namespace

// The message is shared, so that copies of an undefined value cost a pointer.
Value Value::undefined(std::string message) {
  return Value(UndefinedText{std::make_shared<const std::string>(std::move(message))});
}

Value Value::text(std::string value) { return Value(std::make_shared<const std::string>(std::move(value))); }

// All sequences are made here, so `depth` is always right.
Value Value::sequence(Sequence value) {
  value.depth = 1;
  for (const Value& item : value.items) value.depth = std::max(value.depth, item.depth() + 1);
  return Value(std::make_shared<const Sequence>(std::move(value)));
}

Value Value::list(std::vector<Value> items) { return sequence({Sequence::Kind::kList, std::move(items)}); }
Value Value::tuple(std::vector<Value> items) { return sequence({Sequence::Kind::kTuple, std::move(items)}); }
Value Value::dict(Dict value) { return Value(std::make_shared<const Dict>(std::move(value))); }

std::optional<int64_t> Value::whole_number() const {
  if (is(Kind::kBool)) return as_bool() ? 1 : 0;
  if (is(Kind::kInt)) return std::get<int64_t>(data_);
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (is(Kind::kFloat)) return as_float();
  if (const auto whole = whole_number()) return static_cast<double>(*whole);
  return std::nullopt;
}

// A generator is true even if it yields nothing, as in Python.
bool Value::truth() const {
  switch (kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return *number() != 0;
    case Kind::kString:
      return !as_text().empty();
    case Kind::kSequence:
      return !as_sequence().has_length() || !as_sequence().items.empty();
    case Kind::kDict:
      return !as_dict().entries().empty();
    case Kind::kObject:
      return true;
  }
  return false;
}

std::string_view Value::type_name() const {
  // In the order of Sequence::Kind.
  constexpr std::string_view kSequences[] = {"list",        "tuple",      "generator", "dict_keys",
                                             "dict_values", "dict_items", "range"};
  switch (kind()) {
    case Kind::kNone:
      return "NoneType";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kSequence:
      return kSequences[static_cast<size_t>(as_sequence().kind)];
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return as_object().type_name();
  }
  return "";
}

int Value::depth() const {
  if (is(Kind::kSequence)) return as_sequence().depth;
  if (is(Kind::kDict)) return as_dict().depth();
  return 0;
}

namespace {

// Sequences are compared element by element, with 1 == 1.0 inside them as well.
// As in Python, a list never equals a tuple, and generators are equal only to themselves.
bool equal_sequences(const Sequence& a, const Sequence& b) {
  if (a.kind != b.kind || !a.has_length()) return &a == &b;
  return std::ranges::equal(a.items, b.items, equal);
}

// Equal keys with equal values; the order does not matter, as in Python.
bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries().size() != b.entries().size()) return false;
  return std::ranges::all_of(a.entries(), [&](const Dict::Entry& entry) {
    const Value* other = b.find(entry.first);
    return other != nullptr && equal(entry.second, *other);
  });
}

}  // namespace

// Whole numbers are compared first and exactly; doubles lose digits beyond 2^53.
bool equal(const Value& a, const Value& b) {
  if (const auto x = a.whole_number(), y = b.whole_number(); x && y) return *x == *y;
  if (const auto x = a.number(), y = b.number(); x && y) return *x == *y;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kString:
      return a.as_text() == b.as_text();
    case Value::Kind::kSequence:
      return equal_sequences(a.as_sequence(), b.as_sequence());
    case Value::Kind::kDict:
      return equal_dicts(a.as_dict(), b.as_dict());
    case Value::Kind::kObject:
      return &a.as_object() == &b.as_object();
    default:  // None and Undefined have one value; numbers were compared above
      return true;
  }
}

// Chat messages have two or three keys, for which comparing them in turn beats hashing.
std::optional<size_t> Dict::position(std::string_view key) const {
  if (entries_.size() > kManyKeys) {
    const auto found = by_text_.find(std::string(key));
    return found == by_text_.end() ? std::nullopt : std::optional(found->second);
  }
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].first.is_string() && entries_[i].first.as_text() == key) return i;
  return std::nullopt;
}

// Keys that are not texts are rare, so they are searched linearly. 1, 1.0 and True are one key, as in Python.
std::optional<size_t> Dict::position(const Value& key) const {
  if (key.is_string()) return position(key.as_text());
  for (size_t i = 0; i < entries_.size(); ++i)
    if (equal(entries_[i].first, key)) return i;
  return std::nullopt;
}

// Builds the table of keys when the dictionary first becomes large, and keeps it up to date afterwards.
void Dict::append(Value key, Value value) {
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() <= kManyKeys) return;
  const size_t first = by_text_.empty() && entries_.size() == kManyKeys + 1 ? 0 : entries_.size() - 1;
  for (size_t i = first; i < entries_.size(); ++i)
    if (entries_[i].first.is_string()) by_text_.emplace(entries_[i].first.as_text(), i);
}

// An existing key keeps its position. The depth may overestimate after a replacement; it only serves as a limit.
void Dict::set(const Value& key, Value value) {
  if (const auto at = position(key)) {
    depth_ = std::max(depth_, value.depth() + 1);
    entries_[*at].second = std::move(value);
  } else {
    append(key, std::move(value));
  }
}

void Dict::set(std::string_view key, Value value) { set(Value::text(std::string(key)), std::move(value)); }

const Value* Dict::find(const Value& key) const {
  const auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

}  // namespace megalith::tokenizer::jinja

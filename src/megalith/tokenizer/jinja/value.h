// Value: the kinds of Python values that occur in chat templates.
//
// Values are immutable, as in transformers' ImmutableSandboxedEnvironment, and cheap to copy: strings, sequences and
// dictionaries are shared. The only thing that a template can change is a namespace, which is an Object.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace megalith::tokenizer::jinja {

class Dict;
class Object;
struct Sequence;

// A value; None by default.
//
//   Kind         Python              notes
//   kNone        None
//   kUndefined   jinja2.Undefined    false and printable, but an error if it is used otherwise
//   kBool        bool                also a number: True is 1
//   kInt         int                 64 bits
//   kFloat       float
//   kString      str                 valid UTF-8
//   kSequence    list, tuple, …      see Sequence::Kind
//   kDict        dict
//   kObject      anything else       functions, macros, `loop`, namespaces
class Value {
 public:
  // The alternatives of Data, in order.
  enum class Kind { kNone, kUndefined, kBool, kInt, kFloat, kString, kSequence, kDict, kObject };

  Value() = default;  // None
  // Jinja's Undefined; `message` is the error if it is used as if it had a value.
  static Value undefined(std::string message);
  // Make values without charging a Runtime: for constants and small results.
  static Value boolean(bool value) { return Value(value); }
  static Value integer(int64_t value) { return Value(value); }
  static Value real(double value) { return Value(value); }
  static Value text(std::string value);
  static Value sequence(Sequence value);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(Dict value);
  // Borrowed: objects live as long as the rendering (Runtime::make).
  static Value object(Object& value) { return Value(&value); }

  // Tests of the kind. Numbers include True and False, as in Python.
  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_none() const { return is(Kind::kNone); }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat); }

  // Each requires the kind that its name says.
  const std::string& undefined_message() const { return *std::get<UndefinedText>(data_).message; }
  bool as_bool() const { return std::get<bool>(data_); }
  double as_float() const { return std::get<double>(data_); }
  const std::string& as_text() const { return *std::get<Text>(data_); }
  const Sequence& as_sequence() const { return *std::get<std::shared_ptr<const Sequence>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Object& as_object() const { return *std::get<Object*>(data_); }

  // Numbers; True and False are 1 and 0; std::nullopt for other kinds.
  std::optional<int64_t> whole_number() const;
  std::optional<double> number() const;

  // Python's bool(value): false for None, undefined, 0, and empty texts and containers.
  bool truth() const;
  // Returns Python's name of the type: "str", "int", "dict", …
  std::string_view type_name() const;
  // Returns how deeply lists and dictionaries are nested.
  int depth() const;

 private:
  // Shared, so that copying a value never copies its contents.
  using Text = std::shared_ptr<const std::string>;
  struct UndefinedText {
    Text message;
  };
  // In the order of Kind.
  using Data = std::variant<std::monostate, UndefinedText, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Dict>, Object*>;

  template <typename T>
  explicit Value(T value) : data_(std::move(value)) {}

  Data data_;
};

// Anything that a loop can run over, except dictionaries and strings.
struct Sequence {
  // kGenerator is the result of filters such as map: it is true, has no length, and cannot be indexed.
  // Dictionary views (kKeys, kValues, kItems) and kRange are stored as their elements.
  enum class Kind { kList, kTuple, kGenerator, kKeys, kValues, kItems, kRange };
  Kind kind = Kind::kList;
  // All elements; generators are computed when they are made.
  std::vector<Value> items;
  int depth = 1;  // set by Value::sequence

  // Whether len() and indexing work.
  bool has_length() const { return kind != Kind::kGenerator; }
  bool has_elements() const { return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kRange; }
};

// Python's ==: 1 == 1.0 == True; sequences and dictionaries by content, objects by identity.
bool equal(const Value& a, const Value& b);

// A dictionary in insertion order.
class Dict {
 public:
  // Key and value. Keys are compared by equal().
  using Entry = std::pair<Value, Value>;

  // Sets a key, or replaces its value in place.
  void set(const Value& key, Value value);
  void set(std::string_view key, Value value);
  // Return nullptr when there is no such key.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  // All entries in order, and the depth of nesting of the deepest.
  const std::vector<Entry>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  // The index of a key in entries_; std::nullopt when it is not there.
  std::optional<size_t> position(const Value& key) const;
  std::optional<size_t> position(std::string_view key) const;
  // Adds a key that is not there yet.
  void append(Value key, Value value);

  // Few entries are searched in turn, many by the table below.
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_text_;  // position of string keys, once there are many
  int depth_ = 1;
};

}  // namespace megalith::tokenizer::jinja

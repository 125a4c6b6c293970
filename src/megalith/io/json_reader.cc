// Typed access to a parsed JSON file. A JsonFields points to one object inside the shared JsonFile::State and knows the
// path that leads to it, for messages. Every lookup goes through value(), which records (object, key), so that unread()
// can report fields that nothing in Megalith understands. Conversions are strict: 32.0 is not an integer, and "32" is
// not a number.
#include "megalith/io/json_reader.h"

#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"

namespace megalith::io {

struct JsonFile::State {
  std::string name;
  Json root;
  std::set<std::pair<const Json*, std::string>> read;  // fields that were asked for: object and key
};

namespace {

// A tokenizer.json has tens of megabytes; a file beyond this is not meant to be read as JSON.
constexpr uint64_t kMaxFileBytes = 256'000'000;

// Names the type that a value must have, for messages.
template <typename T>
constexpr const char* kKind = nullptr;
template <>
constexpr const char* kKind<int64_t> = "an integer";
template <>
constexpr const char* kKind<double> = "a number";
template <>
constexpr const char* kKind<bool> = "true or false";
template <>
constexpr const char* kKind<std::string> = "a string";
template <>
constexpr const char* kKind<std::vector<int64_t>> = "a list of integers";
template <>
constexpr const char* kKind<std::vector<double>> = "a list of numbers";
template <>
constexpr const char* kKind<std::vector<std::string>> = "a list of strings";

// Each returns whether `value` has the type, and stores it.
bool convert(const Json& value, int64_t& out) {
  // nlohmann stores whole numbers of 2^63 and above as unsigned.
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) return false;
  out = value.get<int64_t>();
  return true;
}

// Whole numbers are numbers, too: "rope_theta": 10000 is a double without complaint.
bool convert(const Json& value, double& out) {
  if (!value.is_number()) return false;
  out = value.get<double>();
  return true;
}

bool convert(const Json& value, bool& out) {
  if (!value.is_boolean()) return false;
  out = value.get<bool>();
  return true;
}

bool convert(const Json& value, std::string& out) {
  if (!value.is_string()) return false;
  out = value.get_ref<const std::string&>();
  return true;
}

template <typename T>
bool convert(const Json& value, std::vector<T>& out) {
  if (!value.is_array()) return false;
  for (const Json& item : value)
    if (!convert(item, out.emplace_back())) return false;
  return true;
}

}  // namespace

JsonFile::JsonFile(Json root, std::string name)
    : state_(std::make_shared<State>(State{std::move(name), std::move(root), {}})) {}

const std::string& JsonFile::name() const { return state_->name; }
const Json& JsonFile::root() const { return state_->root; }

JsonFields JsonFile::fields() const {
  if (!root().is_object())
    throw DataError(
        fmt::format("{}: holds {}; it must be an object: {{\"key\": value, …}}", name(), json_in_words(root())));
  return {state_, root(), ""};
}

JsonFile read_json_file(const std::filesystem::path& path) {
  return parse_json_file(read_text_file(path, kMaxFileBytes), path.string());
}

JsonFile parse_json_file(std::string_view text, const std::string& name) { return {parse_json(text, name), name}; }

JsonFields::JsonFields(std::shared_ptr<JsonFile::State> state, const Json& object, std::string prefix)
    : state_(std::move(state)), object_(&object), prefix_(std::move(prefix)) {}

const std::string& JsonFields::file_name() const { return state_->name; }

std::string JsonFields::field(std::string_view key) const { return in_quotes(prefix_ + std::string(key)); }

// Every getter comes through here: notes that the field was asked for.
const Json* JsonFields::value(std::string_view key) const {
  state_->read.emplace(object_, key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::has(std::string_view key) const { return value(key) != nullptr; }

// Tells a missing field from a wrong one.
void JsonFields::refuse(std::string_view key, std::string_view requirement) const {
  const Json* given = value(key);
  if (given == nullptr)
    throw DataError(fmt::format("{}: {} is missing; it must {}", file_name(), field(key), requirement));
  throw DataError(fmt::format("{}: {} is {}; it must {}", file_name(), field(key), json_in_words(*given), requirement));
}

template <typename T>
T JsonFields::converted(std::string_view key, const Json& value) const {
  T result{};
  if (convert(value, result)) return result;
  // The only integer that cannot be converted is one that does not fit.
  const bool too_large = std::is_same_v<T, int64_t> && value.is_number_integer();
  refuse(key, fmt::format("be {}{}", kKind<T>, too_large ? " from -2^63 to 2^63-1" : ""));
}

template <typename T>
T JsonFields::required(std::string_view key) const {
  const Json* given = value(key);
  if (given == nullptr) refuse(key, fmt::format("be {}", kKind<T>));
  return converted<T>(key, *given);
}

template <typename T>
std::optional<T> JsonFields::optional(std::string_view key) const {
  const Json* given = value(key);
  if (given == nullptr) return std::nullopt;
  return converted<T>(key, *given);
}

template <typename T>
T JsonFields::positive(std::string_view key) const {
  const T result = required<T>(key);
  if (!(result > 0)) refuse(key, fmt::format("be {} greater than 0", kKind<T>));
  return result;
}

template <typename T>
std::optional<T> JsonFields::optional_positive(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return positive<T>(key);
}

// The prefix grows with every level: "rope_scaling.factor".
JsonFields JsonFields::object(std::string_view key) const {
  const Json* given = value(key);
  if (given == nullptr || !given->is_object()) refuse(key, "be an object");
  return {state_, *given, prefix_ + std::string(key) + "."};
}

std::optional<JsonFields> JsonFields::optional_object(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return object(key);
}

// Objects are identified by their address, which is stable since the file never changes.
std::vector<std::string> JsonFields::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, unused] : object_->items())
    if (!state_->read.contains({object_, key})) keys.push_back(key);
  return keys;
}

// Instantiated here, so that the header does not need the conversions.
#define MEGALITH_JSON_TYPE(T)                                     \
  template T JsonFields::required<T>(std::string_view key) const; \
  template std::optional<T> JsonFields::optional<T>(std::string_view key) const;
MEGALITH_JSON_TYPE(int64_t)
MEGALITH_JSON_TYPE(double)
MEGALITH_JSON_TYPE(bool)
MEGALITH_JSON_TYPE(std::string)
MEGALITH_JSON_TYPE(std::vector<int64_t>)
MEGALITH_JSON_TYPE(std::vector<double>)
MEGALITH_JSON_TYPE(std::vector<std::string>)
#undef MEGALITH_JSON_TYPE

template int64_t JsonFields::positive<int64_t>(std::string_view key) const;
template double JsonFields::positive<double>(std::string_view key) const;
template std::optional<int64_t> JsonFields::optional_positive<int64_t>(std::string_view key) const;
template std::optional<double> JsonFields::optional_positive<double>(std::string_view key) const;

}  // namespace megalith::io

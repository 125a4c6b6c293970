// JSON with a memory of where each value is, so that a message can say "tokenizer.json: model.vocab is null; an object
// is expected". Nodes are cheap to copy: they refer to a document that the caller keeps alive.
#include "megalith/tokenizer/text/json_node_internal.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "megalith/base/error.h"
#include "megalith/base/json_words.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

// Reads through the stream's buffer at once; sizes of special files are not known beforehand.
std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  check<DataError>(stream.good(), "{} cannot be opened: {}", path.string(), std::strerror(errno));
  std::ostringstream text;
  text << stream.rdbuf();
  check<DataError>(!stream.bad() && !text.fail(), "{} cannot be read: {}", path.string(), std::strerror(errno));
  return std::move(text).str();
}

nlohmann::json parse_json(std::string_view text, const std::string& file) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{} is not valid JSON: {}", file, without_exception_name(error.what())));
  }
}

std::string JsonNode::where() const { return path_.empty() ? file_ : fmt::format("{}: {}", file_, path_); }

void JsonNode::fail(std::string_view what) const { throw DataError(fmt::format("{} {}", where(), what)); }

// Fails with the type and, for scalars, the value that is there instead of `type`.
void JsonNode::expect(bool is_type, std::string_view type) const {
  if (is_type) return;
  std::string given;
  if (value_->is_primitive()) given = value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (given.size() > 60) given = given.substr(0, 60) + "…";  // enough to recognize the value
  fail(fmt::format("is {}{}; {} is expected", value_->type_name(), given.empty() ? "" : " " + given, type));
}

// A child shares the document and remembers one more step of the path.
JsonNode JsonNode::at(const std::string& key) const {
  expect(value_->is_object(), "an object");
  const auto found = value_->find(key);
  if (found == value_->end()) fail(fmt::format("has no \"{}\"", key));
  JsonNode node = *this;
  node.value_ = &*found;
  ++node.depth_;
  node.path_ = path_.empty() ? key : path_ + "." + key;
  return node;
}

// A member that is null counts as absent, since tokenizers writes null for every option that is off.
std::optional<JsonNode> JsonNode::find(const std::string& key) const {
  expect(value_->is_object(), "an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return at(key);
}

size_t JsonNode::array_size() const {
  expect(value_->is_array(), "an array");
  return value_->size();
}

JsonNode JsonNode::at(size_t index) const {
  if (index >= array_size()) fail(fmt::format("has {} elements; at least {} are expected", value_->size(), index + 1));
  JsonNode node = *this;
  node.value_ = &(*value_)[index];
  ++node.depth_;
  node.path_ = fmt::format("{}[{}]", path_, index);
  return node;
}

std::string JsonNode::string() const {
  expect(value_->is_string(), "a string");
  return value_->get<std::string>();
}

bool JsonNode::boolean() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

// JSON has no NaN, but "1e999" parses to infinity.
double JsonNode::number() const {
  expect(value_->is_number(), "a number");
  const auto result = value_->get<double>();
  expect(std::isfinite(result), "a finite number");
  return result;
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  const std::string expected = fmt::format("a whole number from {} to {}", low, high);
  expect(value_->is_number_integer(), expected);
  // Values above INT64_MAX would wrap to negative numbers; the largest number stands for them in the range check.
  const bool huge = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t result = huge ? INT64_MAX : value_->get<int64_t>();
  expect(result >= low && result <= high, expected);
  return result;
}

// Members such as "replacement": "▁".
char32_t JsonNode::character() const {
  const std::string text = string();
  expect(!text.empty() && utf8_length(text[0]) == text.size(), "a string of one character");
  return code_point_at(text, 0);
}

std::string JsonNode::string_or(const std::string& key, const std::string& otherwise) const {
  const auto node = find(key);
  return node ? node->string() : otherwise;
}

bool JsonNode::boolean_or(const std::string& key, bool otherwise) const {
  const auto node = find(key);
  return node ? node->boolean() : otherwise;
}

}  // namespace megalith::tokenizer

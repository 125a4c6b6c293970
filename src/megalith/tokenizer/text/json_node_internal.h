// JsonNode: a value of a JSON file that knows its place, so that every error names the file and the field:
//
//   root.at("model").at("vocab").fail("is empty")   ->   "tokenizer.json: model.vocab is empty"
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// Reads a whole file. Throws DataError when it cannot be read.
std::string read_file(const std::filesystem::path& path);
// Parses JSON. Throws DataError, naming `file`, when it is invalid.
nlohmann::json parse_json(std::string_view text, const std::string& file);

// Borrows the document, which outlives it. Getters throw DataError for a value of another type or out of range.
class JsonNode {
 public:
  // The root of a document; `file` is its name in messages.
  JsonNode(const nlohmann::json& document, std::string file) : value_(&document), file_(std::move(file)) {}

  // Return a member of an object; find() returns std::nullopt when it is absent or null.
  JsonNode at(const std::string& key) const;
  std::optional<JsonNode> find(const std::string& key) const;
  // Returns an element of an array.
  JsonNode at(size_t index) const;
  // The length of an array.
  size_t array_size() const;

  // The value itself; integer() also requires low <= value <= high, number() a finite number.
  std::string string() const;
  bool boolean() const;
  double number() const;
  int64_t integer(int64_t low, int64_t high) const;
  // Returns the character of a string of exactly one character.
  char32_t character() const;

  // A member of an object, or `otherwise` when it is absent or null.
  std::string string_or(const std::string& key, const std::string& otherwise) const;
  bool boolean_or(const std::string& key, bool otherwise) const;

  // Tests of the type, for fields that may have several.
  bool is_string() const { return value_->is_string(); }
  bool is_array() const { return value_->is_array(); }
  bool is_object() const { return value_->is_object(); }
  // The value for loops over large objects, which nodes would make slow.
  const nlohmann::json& raw() const { return *value_; }

  // Returns how many levels the value lies below the document. Recursive readers use it to stop.
  int depth() const { return depth_; }

  // Returns "file: path", for messages.
  std::string where() const;
  // Throws DataError: "file: path what".
  [[noreturn]] void fail(std::string_view what) const;

 private:
  // Fails unless `is_type`; the message says what is there and that `type` is expected.
  void expect(bool is_type, std::string_view type) const;

  // The value in the borrowed document, and its place.
  const nlohmann::json* value_;
  std::string file_;
  int depth_ = 0;
  std::string path_;  // "model.vocab", "pre_tokenizer.pretokenizers[1]"
};

}  // namespace megalith::tokenizer

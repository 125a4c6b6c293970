// Reads JSON files such as config.json. Every error names the file and the field, the value found and what it must be.
//
//   const JsonFile file = read_json_file(folder / "config.json");
//   const JsonFields config = file.fields();
//   const int64_t hidden = config.positive<int64_t>("hidden_size");
//   const auto head_dim = config.optional<int64_t>("head_dim");  // std::nullopt when absent or null
//   if (const auto rope = config.optional_object("rope_scaling")) … rope->required<double>("factor") …
//   config.unread();                                             // keys that no getter was called for
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/json_text.h"

namespace megalith::io {

class JsonFields;

// A parsed file. Copies share the value and the record of what was read. Getters write that record, so only one thread
// may read at a time.
class JsonFile {
 public:
  // `name` is the file's name in messages.
  JsonFile(Json root, std::string name);

  // Return the name for messages, and the parsed value.
  const std::string& name() const;
  const Json& root() const;
  // Returns the fields of the top-level object. Throws DataError when the file holds something else.
  JsonFields fields() const;

 private:
  friend class JsonFields;
  struct State;
  std::shared_ptr<State> state_;
};

// Throws DataError when the file cannot be read, exceeds 256 MB, or is rejected by parse_json.
JsonFile read_json_file(const std::filesystem::path& path);
// The same for a text that is in memory; `name` stands for the file in messages.
JsonFile parse_json_file(std::string_view text, const std::string& name);

// The fields of one object; keeps the file alive. T is int64_t, double (integers are accepted), bool, std::string, or a
// std::vector of int64_t, double or std::string. All getters throw DataError for a value of another type; null counts
// as absent.
class JsonFields {
 public:
  // Returns whether the field is present and not null.
  bool has(std::string_view key) const;

  // Return the value; required() throws when it is absent.
  template <typename T>
  T required(std::string_view key) const;
  template <typename T>
  std::optional<T> optional(std::string_view key) const;

  // As above, for values greater than 0; T is int64_t or double.
  template <typename T>
  T positive(std::string_view key) const;
  template <typename T>
  std::optional<T> optional_positive(std::string_view key) const;

  // Return the fields of a nested object.
  JsonFields object(std::string_view key) const;
  std::optional<JsonFields> optional_object(std::string_view key) const;

  // Returns the raw value, for a field of several possible types; nullptr when absent or null.
  const Json* value(std::string_view key) const;
  // Returns the object that these fields belong to.
  const Json& whole() const { return *object_; }

  // Returns the keys of this object that no getter was called for, in the file's order.
  std::vector<std::string> unread() const;

  // Throws DataError: `config.json: "num_attention_heads" is 7 (an integer); it must <requirement>`.
  [[noreturn]] void refuse(std::string_view key, std::string_view requirement) const;
  // Returns the name of the file, for messages of the caller's own.
  const std::string& file_name() const;

 private:
  friend class JsonFile;
  JsonFields(std::shared_ptr<JsonFile::State> state, const Json& object, std::string prefix);
  std::string field(std::string_view key) const;  // "rope_scaling.factor", in quotes
  template <typename T>
  T converted(std::string_view key, const Json& value) const;

  std::shared_ptr<JsonFile::State> state_;
  const Json* object_;  // points into state_
  std::string prefix_;  // "rope_scaling." for the fields of that object
};

}  // namespace megalith::io

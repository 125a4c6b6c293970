// Reading JSON files such as config.json: every error names the file and the field, what is there and what must be.
//
//   const JsonFile file = read_json_file(folder / "config.json");
//   const JsonFields config = file.fields();
//   const int64_t hidden = config.positive<int64_t>("hidden_size");
//   const auto head_dim = config.optional<int64_t>("head_dim");  // absent or null: nothing
//   if (const auto rope = config.optional_object("rope_scaling")) … rope->required<double>("factor") …
//   config.unread();                                             // keys that nobody asked for
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

// A parsed file. Copies share the value and the record of what was read. Reading records: one thread at a time.
class JsonFile {
 public:
  // `name` is what messages call the file.
  JsonFile(Json root, std::string name);

  const std::string& name() const;
  const Json& root() const;
  // The fields of the object that the file is. Throws DataError when it is something else.
  JsonFields fields() const;

 private:
  friend class JsonFields;
  struct State;
  std::shared_ptr<State> state_;
};

// Throws DataError when the file cannot be read, is larger than 256 MB, or is refused by parse_json.
JsonFile read_json_file(const std::filesystem::path& path);
JsonFile parse_json_file(std::string_view text, const std::string& name);

// The fields of one object. Keeps the file alive. T is one of int64_t, double (whole numbers are fine, too), bool,
// std::string, and std::vector of int64_t, double and std::string. All getters throw DataError for a value of another
// type; a null counts as absent.
class JsonFields {
 public:
  // Present, and not null.
  bool has(std::string_view key) const;

  template <typename T>
  T required(std::string_view key) const;
  template <typename T>
  std::optional<T> optional(std::string_view key) const;

  // Greater than 0; T is int64_t or double.
  template <typename T>
  T positive(std::string_view key) const;
  template <typename T>
  std::optional<T> optional_positive(std::string_view key) const;

  JsonFields object(std::string_view key) const;
  std::optional<JsonFields> optional_object(std::string_view key) const;

  // The value as it is, for a field of several possible types; nullptr when absent or null.
  const Json* value(std::string_view key) const;
  // The object that these fields belong to.
  const Json& whole() const { return *object_; }

  // Keys of this object that no getter was called for, in the file's order.
  std::vector<std::string> unread() const;

  // Throws DataError: `config.json: "num_attention_heads" is 7 (an integer); it must <requirement>`.
  [[noreturn]] void refuse(std::string_view key, std::string_view requirement) const;
  const std::string& file_name() const;

 private:
  friend class JsonFile;
  JsonFields(std::shared_ptr<JsonFile::State> state, const Json& object, std::string prefix);
  std::string field(std::string_view key) const;  // "rope_scaling.factor", in quotes
  template <typename T>
  T converted(std::string_view key, const Json& value) const;

  std::shared_ptr<JsonFile::State> state_;
  const Json* object_;  // inside of state_
  std::string prefix_;  // "rope_scaling." for the fields of that object
};

}  // namespace megalith::io

#include <nlohmann/json.hpp>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"

namespace megalith::fuzz {
namespace {

template <typename Read>
void expect_value_or_data_error(const Read& read) {
  try {
    read();
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("config.json: "), "a message that does not name the file");
  }
}

// One getter for each key, right or wrong: an exception costs more than everything else here, and the fuzzer finds its
// way to every pair.
void read_fields(const io::JsonFields& fields) {
  size_t number = 0;
  for (const auto& [key, unused] : fields.whole().items()) {
    expect_value_or_data_error([&] {
      switch ((number + key.size()) % 8) {
        case 0:
          return void(fields.required<std::string>(key));
        case 1:
          return void(fields.optional<bool>(key));
        case 2:
          return void(fields.positive<int64_t>(key));
        case 3:
          return void(fields.optional_positive<double>(key));
        case 4:
          return void(fields.required<std::vector<int64_t>>(key));
        case 5:
          return void(fields.optional<std::vector<double>>(key));
        case 6:
          return void(fields.optional<std::vector<std::string>>(key));
        default:
          return read_fields(fields.object(key));
      }
    });
    ++number;
  }
  check(fields.unread().empty(), "a key that was asked for counts as unread");
}

}  // namespace

void json_config(std::string_view input) {
  expect_value_or_data_error([&] {
    const io::JsonFile file = io::parse_json_file(input, "config.json");
    // A parsed value can be written, and parsing the result gives the same value.
    const std::string written = file.root().dump();
    check(io::parse_json(written, "config.json") == file.root(), "another value after writing and reading");
    expect_value_or_data_error([&] { read_fields(file.fields()); });
  });
}

}  // namespace megalith::fuzz

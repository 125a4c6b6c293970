// Rows of tables for tests, and the files that pyarrow, pandas and datasets wrote (tests/data/tables/make_tables.py).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "megalith/base/error.h"
#include "megalith/data/table/table_reader.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

inline std::string table_file(const std::string& name) { return "tests/data/tables/" + name; }

inline std::string table_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  check<DataError>(file.good(), "{} cannot be read; run the tests at the top of the repository", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// All rows, in order, as a JSON list.
inline io::Json rows_in_order(const std::filesystem::path& path) {
  io::Json rows = io::Json::array();
  const auto reader = open_table(path);
  std::string text;
  int64_t number = 0;
  while (reader->next(text, number)) rows.push_back(io::parse_json(text, path.string()));
  return rows;
}

// The same by number, from the last row to the first.
inline io::Json rows_by_number(const std::filesystem::path& path) {
  const auto table = open_table_by_number(path);
  io::Json rows = io::Json::array();
  for (int64_t i = table->size() - 1; i >= 0; --i)
    rows.insert(rows.begin(), io::parse_json(table->text(i), path.string()));
  return rows;
}

// The lines of a .jsonl file of that folder.
inline io::Json json_lines(const std::string& name) {
  std::ifstream file(table_file(name));
  io::Json rows = io::Json::array();
  for (std::string line; std::getline(file, line);) rows.push_back(io::parse_json(line, name));
  check<DataError>(!rows.empty(), "{} cannot be read", name);
  return rows;
}

}  // namespace megalith::data

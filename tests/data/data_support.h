// Pairs of files and reference data for the tests of `data`.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/data/indexed/indexed_writer.h"
#include "megalith/data/indexed/token_type.h"
#include "tests/io/file_support.h"
#include "tests/support/expect.h"

namespace megalith::data {

using io::file_bytes;
using io::message_of;
using io::put_file;
using testing::expect_contains;
using testing::TempFolder;

// Made by tests/data/megatron/make_megatron.py. Tests run at the top of the repository: the names of cache files depend
// on relative paths.
inline const std::string kMegatronFolder = "tests/data/megatron";

inline nlohmann::json megatron_json(const std::string& name) {
  std::ifstream file(kMegatronFolder + "/" + name);
  check<DataError>(file.good(), "{}/{} cannot be read; run the tests at the top of the repository", kMegatronFolder,
                   name);
  return nlohmann::json::parse(file);
}

using TokenIds = std::vector<int32_t>;
using Documents = std::vector<std::vector<TokenIds>>;

inline void write_pair(const std::string& prefix, TokenType type, const Documents& documents) {
  StagedFiles files;
  IndexedWriter writer(files, prefix, type);
  for (const auto& document : documents) {
    for (const TokenIds& sequence : document) writer.add_sequence(sequence);
    writer.end_document();
  }
  writer.finish();
  files.commit();
}

// One sequence per document: 1, 2, 3, … and then 0, which is EOD.
inline Documents counting_documents(const std::vector<int>& lengths) {
  Documents documents;
  for (const int length : lengths) {
    TokenIds sequence;
    for (int i = 1; i < length; ++i) sequence.push_back(i);
    sequence.push_back(0);
    documents.push_back({sequence});
  }
  return documents;
}

inline TokenType token_type_named(const std::string& name) {
  for (uint8_t code = 1; code <= 8; ++code)
    if (token_type_name(*token_type_of_code(code)) == name) return *token_type_of_code(code);
  throw InternalError("no token type " + name);
}

inline std::vector<int64_t> read_sequence(const IndexedDataset& dataset, int64_t sequence) {
  std::vector<int64_t> tokens(static_cast<size_t>(dataset.length(sequence)));
  dataset.read(sequence, 0, tokens);
  return tokens;
}

}  // namespace megalith::data

// .bin and .idx files byte for byte as Megatron's own writer makes them, and read back.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/data/data_support.h"
#include "tests/support/subprocess.h"

namespace megalith::data {
namespace {

using nlohmann::json;

std::string pair(const json& name) { return kMegatronFolder + "/pairs/" + name.get<std::string>(); }

void expect_same_pair(const std::string& ours, const std::string& theirs) {
  EXPECT_EQ(file_bytes(bin_path(ours)), file_bytes(bin_path(theirs)));
  EXPECT_EQ(file_bytes(idx_path(ours)), file_bytes(idx_path(theirs)));
}

TEST(GoldenIndexedFiles, indexed_files_json_written) {
  const TempFolder temp;
  for (const json& c : megatron_json("indexed_files.json").at("pairs")) {
    SCOPED_TRACE(c.at("name"));
    const std::string prefix = temp / c.at("name");
    write_pair(prefix, token_type_named(c.at("type")), c.at("documents").get<Documents>());
    expect_same_pair(prefix, pair(c.at("name")));
  }
}

TEST(GoldenIndexedFiles, indexed_files_json_read) {
  for (const json& c : megatron_json("indexed_files.json").at("pairs")) {
    SCOPED_TRACE(c.at("name"));
    const IndexedDataset dataset(pair(c.at("name")), 65536);
    dataset.check();
    EXPECT_EQ(json(token_type_name(dataset.token_type())), c.at("type"));
    ASSERT_EQ(dataset.document_count(), c.at("documents").size());
    int64_t sequence = 0;
    for (size_t d = 0; d < c.at("documents").size(); ++d) {
      EXPECT_EQ(dataset.index().documents[d], sequence);
      for (const json& tokens : c.at("documents")[d])
        EXPECT_EQ(read_sequence(dataset, sequence++), tokens.get<std::vector<int64_t>>());
    }
    EXPECT_EQ(dataset.sequence_count(), sequence);
  }
}

TEST(GoldenIndexedFiles, indexed_files_json_merged) {
  const json merge = megatron_json("indexed_files.json").at("merge");
  std::vector<std::string> inputs;
  for (const json& name : merge.at("inputs")) inputs.push_back(pair(name));
  const TempFolder temp;
  StagedFiles files;
  merge_indexed(inputs, temp / "merged", files);
  files.commit();
  expect_same_pair(temp / "merged", pair(merge.at("output")));
}

TEST(GoldenIndexedFiles, indexed_files_json_vocabulary_types) {
  for (const json& c : megatron_json("indexed_files.json").at("vocabulary_types"))
    EXPECT_EQ(json(token_type_name(token_type_for_vocabulary(c[0]))), c[1]) << c;
}

// Megatron's reader opens what we write; only where Python has it.
TEST(IndexedFiles, OpenInMegatron) {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (!python) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with megatron-core";
  if (testing::run_process({python, "-c", "import megatron.core.datasets.indexed_dataset"}, {}, std::chrono::minutes(3))
          .exit_code != 0)
    GTEST_SKIP() << "the Python of MEGALITH_PYTHON has no megatron-core";
  const TempFolder temp;
  write_pair(temp / "ours", TokenType::kUint16, {{{1, 2, 3}, {4}}, {}, {{65535}}});
  const std::string script =
      "import sys\n"
      "from megatron.core.datasets.indexed_dataset import IndexedDataset\n"
      "d = IndexedDataset(sys.argv[1])\n"
      "assert [x.tolist() for x in d[0:3]] == [[1, 2, 3], [4], [65535]], d[0:3]\n"
      "assert d.document_indices.tolist() == [0, 2, 2, 3], d.document_indices\n";
  const auto run = testing::run_process({python, "-c", script, temp / "ours"}, {}, std::chrono::seconds(120));
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

}  // namespace
}  // namespace megalith::data

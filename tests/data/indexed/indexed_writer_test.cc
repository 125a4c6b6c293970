#include "megalith/data/indexed/indexed_writer.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

TEST(IndexedWriter, AnyDocumentsComeBack) {
  std::mt19937 random(1);
  const TempFolder temp;
  for (int round = 0; round < 30; ++round) {
    const auto type = *token_type_of_code(static_cast<uint8_t>(1 + random() % 8));
    Documents documents(random() % 20);
    for (auto& document : documents) {
      document.resize(random() % 3);
      for (TokenIds& sequence : document)
        for (auto left = random() % 100; left > 0; --left) sequence.push_back(static_cast<int32_t>(random() % 128));
    }
    const std::string prefix = temp / fmt::format("folder/{}", round);
    write_pair(prefix, type, documents);
    const IndexedDataset dataset(prefix, 128);
    dataset.check();
    ASSERT_EQ(dataset.document_count(), static_cast<int64_t>(documents.size()));
    int64_t number = 0;
    for (const auto& document : documents)
      for (const TokenIds& sequence : document)
        EXPECT_EQ(read_sequence(dataset, number++), std::vector<int64_t>(sequence.begin(), sequence.end()));
  }
}

TEST(IndexedWriter, SequencesLongerThanItsBuffer) {
  const TempFolder temp;
  const TokenIds sequence(700'000, 7);
  write_pair(temp / "long", TokenType::kInt32, {{{1}, sequence, {2}}});
  const IndexedDataset dataset(temp / "long");
  dataset.check();
  EXPECT_EQ(read_sequence(dataset, 1), std::vector<int64_t>(700'000, 7));
  EXPECT_EQ(read_sequence(dataset, 2), std::vector<int64_t>{2});
}

TEST(IndexedWriter, IdsThatDoNotFitAreRefusedAndNothingIsLeft) {
  const TempFolder temp;
  const auto write = [&](int32_t id) {
    return message_of<DataError>([&] { write_pair(temp / "set", TokenType::kUint16, {{{1, id}}}); });
  };
  expect_contains(write(65536), "token id 65536 cannot be stored as uint16");
  expect_contains(write(-1), "token id -1 cannot be stored");
  EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
}

TEST(MergeIndexed, RefusesWhatDoesNotFitTogether) {
  const TempFolder temp;
  write_pair(temp / "a", TokenType::kUint16, {{{1}}});
  write_pair(temp / "b", TokenType::kInt32, {{{2}}});
  const auto merge = [&](std::vector<std::string> inputs, const std::string& output) {
    StagedFiles files;
    merge_indexed(inputs, output, files);
    files.commit();
  };
  expect_contains(message_of<DataError>([&] {
                    merge({temp / "a", temp / "b"}, temp / "c");
                  }),
                  "b stores its tokens as int32");
  expect_contains(message_of<ConfigError>([&] {
                    merge({temp / "a", temp / "a"}, temp / "a");
                  }),
                  "choose another output");
  std::string bytes = file_bytes(temp / "a.idx");
  bytes[34] = 2;
  put_file(temp / "d.idx", bytes);
  put_file(temp / "d.bin", file_bytes(temp / "a.bin"));
  expect_contains(message_of<DataError>([&] { merge({temp / "a", temp / "d"}, temp / "c"); }), "d.idx: byte 34");
  EXPECT_FALSE(std::filesystem::exists(temp / "c.bin") || std::filesystem::exists(temp / "c.bin.tmp"));
}

}  // namespace
}  // namespace megalith::data

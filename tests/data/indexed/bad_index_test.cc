// Damaged .bin and .idx files: refused with the file and the byte, never read past their end.
#include <gtest/gtest.h>

#include <cstring>

#include "fuzz/entries.h"
#include "megalith/data/indexed/indexed_dataset.h"
#include "tests/data/data_support.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::data {
namespace {

class BadIndex : public ::testing::Test {
 protected:
  BadIndex() { write_pair(prefix_, TokenType::kUint16, {{{1, 2, 3}, {4}}, {}, {{5, 6}}}); }

  template <typename T>
  void change(size_t at, T value) {
    std::string bytes = file_bytes(idx_path(prefix_));
    std::memcpy(bytes.data() + at, &value, sizeof value);
    put_file(idx_path(prefix_), bytes);
  }
  std::string message() {
    return message_of<DataError>([&] { IndexedDataset(prefix_, vocab_size_).check(); });
  }
  void expect_message(const std::string& part) { expect_contains(message(), prefix_ + ".idx: " + part); }

  TempFolder temp_;
  std::string prefix_ = temp_ / "set";
  std::optional<int64_t> vocab_size_;
  // Three sequences, four entries of the document index.
  static constexpr size_t kLengths = 34, kOffsets = 34 + 12, kDocuments = 34 + 36;
};

TEST_F(BadIndex, ABadHeaderIsRefused) {
  change(0, 'X');
  expect_message("byte 0: bad header");
  change(0, 'M');
  change(9, uint64_t{2});
  expect_message("byte 9: bad version 2");
  change(9, uint64_t{1});
  change(17, uint8_t{9});
  expect_message("byte 17: token type 9 is unknown");
  change(17, uint8_t{0});
  expect_message("byte 17: token type 0 is unknown");
}

TEST_F(BadIndex, CountsThatDoNotFitTheFileAreRefused) {
  for (const uint64_t count : {uint64_t{4}, uint64_t{1} << 61, ~uint64_t{0}}) {
    change(18, count);
    expect_contains(message(), ".idx: byte ");
  }
  change(18, ~uint64_t{0});
  expect_message("byte 18: it promises 18446744073709551615 sequences");
  change(18, uint64_t{3});
  for (const uint64_t count : {uint64_t{0}, ~uint64_t{0}}) {
    change(26, count);
    expect_message("byte 26: the document index has");
  }
  change(26, uint64_t{3});
  expect_message("byte 94: 3 sequences and 3 entries of the document index take 94 bytes, but the file has 102");
}

TEST_F(BadIndex, CutAtEveryByte) {
  const std::string whole = file_bytes(idx_path(prefix_));
  for (size_t size = 0; size < whole.size(); ++size) {
    put_file(idx_path(prefix_), whole.substr(0, size));
    expect_message("byte ");
  }
  put_file(idx_path(prefix_), whole + "x");
  expect_message("byte 102: ");
}

TEST_F(BadIndex, ABinFileCutAtEveryByte) {
  const std::string whole = file_bytes(bin_path(prefix_));
  for (size_t size = 0; size < whole.size(); ++size) {
    put_file(bin_path(prefix_), whole.substr(0, size));
    const std::string text = message();
    expect_contains(text, "byte ");
    expect_contains(text, prefix_);
  }
  put_file(bin_path(prefix_), whole + "xx");
  expect_message("byte 18: 3 sequences of uint16 tokens end at byte 12 of the .bin file, which has 14 bytes");
}

TEST_F(BadIndex, BadEntriesOfTheArraysAreRefused) {
  change(kLengths + 4, int32_t{-1});
  expect_message("byte 38: sequence 1 has -1 tokens");
  change(kLengths + 4, int32_t{2});
  expect_message("byte 62: sequence 2 starts at byte 8 of the .bin file; the sequences before it end at byte 10");
  change(kLengths + 4, int32_t{1});
  change(kOffsets, int64_t{2});
  expect_message("byte 46: sequence 0 starts at byte 2");
  change(kOffsets, int64_t{0});
  change(kLengths + 8, int32_t{1'000'000});
  expect_message("byte 42: sequence 2 of 1000000 tokens ends at byte 2000008 of the .bin file, which has 12 bytes");
}

TEST_F(BadIndex, ABadDocumentIndexIsRefused) {
  change(kDocuments, int64_t{1});
  expect_message("byte 70: the document index begins with 1");
  change(kDocuments, int64_t{0});
  change(kDocuments + 16, int64_t{1});
  expect_message("byte 86: document 2 starts with sequence 1, before the one before it (2)");
  change(kDocuments + 16, int64_t{4});
  expect_message("byte 86: document 2 starts with sequence 4, but there are 3");
  change(kDocuments + 16, int64_t{2});
  change(kDocuments + 24, int64_t{2});
  expect_message("byte 94: the document index ends with 2; it must end with 3");
}

TEST_F(BadIndex, ReadingStaysInsideTheFiles) {
  change(kOffsets + 16, int64_t{1} << 40);
  const IndexedDataset dataset(prefix_);
  EXPECT_EQ(read_sequence(dataset, 0), (std::vector<int64_t>{1, 2, 3}));
  expect_contains(message_of<DataError>([&] { read_sequence(dataset, 2); }), ".idx: byte 62: sequence 2");
  change(kOffsets + 16, int64_t{-2});
  expect_contains(message_of<DataError>([&] { read_sequence(IndexedDataset(prefix_), 2); }), ".idx: byte 62");
}

TEST_F(BadIndex, TokensBeyondTheVocabularyAreRefused) {
  vocab_size_ = 6;
  expect_contains(message(), prefix_ +
                                 ".bin: byte 10: token 1 of sequence 2 is 6; ids go from 0 to 5: the file was made "
                                 "with another tokenizer");
  vocab_size_ = 7;
  IndexedDataset(prefix_, vocab_size_).check();
}

TEST_F(BadIndex, AnotherTokenizersFileShowsAfterAFewTokens) {
  // The first ids of 1000 sequences are small, one in ten of the others is not.
  Documents documents;
  for (int i = 0; i < 1000; ++i) documents.push_back({{1, 2, 3, i % 10 == 0 ? 500 : 4, 5}});
  write_pair(prefix_, TokenType::kUint16, documents);
  const IndexedDataset dataset(prefix_, 100);
  dataset.check_some(3 * 256);  // three tokens at each of 256 places
  for (const int64_t tokens : {int64_t{4 * 256}, int64_t{5000}})
    expect_contains(message_of<DataError>([&] { dataset.check_some(tokens); }), "token 3 of sequence 0 is 500");
  IndexedDataset(prefix_, 501).check_some();
}

TEST_F(BadIndex, TokensThatAreNone) {
  write_pair(prefix_, TokenType::kInt32, {{{1, 2}}});
  std::string bytes = file_bytes(bin_path(prefix_));
  bytes.replace(4, 4, "\xFF\xFF\xFF\xFF");
  put_file(bin_path(prefix_), bytes);
  expect_contains(message(), ".bin: byte 4: token 1 of sequence 0 is -1; a token id is a whole number >= 0");
  write_pair(prefix_, TokenType::kFloat32, {{{1, 2}}});
  for (const float value : {0.5F, -1.0F, std::numeric_limits<float>::quiet_NaN(), 1e30F}) {
    bytes.replace(4, 4, reinterpret_cast<const char*>(&value), 4);
    put_file(bin_path(prefix_), bytes);
    expect_contains(message(), ".bin: byte ");
  }
}

TEST_F(BadIndex, MissingFilesAreNamed) {
  std::filesystem::remove(bin_path(prefix_));
  expect_contains(message(), prefix_ + ".bin");
  std::filesystem::remove(idx_path(prefix_));
  expect_contains(message(), prefix_ + ".idx");
}

TEST(FuzzEntries, IdxFile) { testing::run_fuzz_entry("idx_file", fuzz::idx_file); }

}  // namespace
}  // namespace megalith::data

// The bytes of an .idx file, and the statistics that are computed from it. Damaged files: bad_index_test.cc.
#include "megalith/data/indexed/index_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "megalith/data/indexed/indexed_dataset.h"
#include "megalith/data/indexed/summary.h"
#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

const std::vector<int32_t> kSequenceLengths{3, 1, 2};
const std::vector<int64_t> kDocumentStarts{0, 2, 2, 3};

TEST(IndexFile, IsReadBackAsItWasWritten) {
  const std::vector<std::byte> file = index_bytes(TokenType::kUint16, kSequenceLengths, kDocumentStarts);
  ASSERT_EQ(file.size(), kIndexHeaderBytes + 12 * 3 + 8 * 4);
  const IndexView index = parse_index(file, "set.idx");
  EXPECT_EQ(index.type, TokenType::kUint16);
  EXPECT_FALSE(index.has_modes);
  ASSERT_EQ(index.lengths.size(), 3);
  ASSERT_EQ(index.offsets.size(), 3);
  ASSERT_EQ(index.documents.size(), 4);
  const std::vector<int64_t> offsets{0, 6, 8};  // two bytes per token
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(index.lengths[i], kSequenceLengths[i]);
    EXPECT_EQ(index.offsets[i], offsets[i]);
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(index.documents[i], kDocumentStarts[i]);
  check_index(index, 12, "set.idx");
}

TEST(IndexFile, PlacesOfEntriesAreThoseInTheFile) {
  const std::vector<std::byte> file = index_bytes(TokenType::kInt32, kSequenceLengths, kDocumentStarts);
  const IndexView index = parse_index(file, "set.idx");
  EXPECT_EQ(PackedArray<int32_t>(file.data() + index.length_place(2), 1)[0], 2);
  EXPECT_EQ(PackedArray<int64_t>(file.data() + index.offset_place(1), 1)[0], 12);
  EXPECT_EQ(PackedArray<int64_t>(file.data() + index.document_place(3), 1)[0], 3);
}

TEST(IndexFile, ABinFileOfAnotherSizeIsRefused) {
  const std::vector<std::byte> file = index_bytes(TokenType::kUint16, kSequenceLengths, kDocumentStarts);
  expect_contains(message_of<DataError>([&] { check_index(parse_index(file, "set.idx"), 14, "set.idx"); }), "set.idx");
}

TEST(IndexedSummary, CountsSequencesByRangesOfLengths) {
  const TempFolder temp;
  const std::string prefix = temp / "set";
  write_pair(prefix, TokenType::kUint16, counting_documents({1, 2, 3, 9, 12}));
  const IndexedSummary summary = summarize(IndexedDataset(prefix));
  EXPECT_EQ(summary.tokens, 27);
  EXPECT_EQ(summary.shortest, 1);
  EXPECT_EQ(summary.longest, 12);
  ASSERT_EQ(summary.lengths.size(), 4);  // 1, 2 to 3, 4 to 7, 8 to 15
  const std::vector<int64_t> first{1, 2, 4, 8}, last{1, 3, 7, 15}, counts{1, 2, 0, 2};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(summary.lengths[i].from, first[i]);
    EXPECT_EQ(summary.lengths[i].to, last[i]);
    EXPECT_EQ(summary.lengths[i].sequences, counts[i]);
  }
}

}  // namespace
}  // namespace megalith::data

#include "megalith/data/sft/record_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using testing::expect_contains;
using testing::TemporaryFolder;

std::string all_records(const std::string& name, const std::string& content) {
  const TemporaryFolder folder(TemporaryFolder::Files{{name, content}});
  const RecordFile file(folder.path() / name);
  io::Json list = io::Json::array();
  for (int64_t i = 0; i < file.size(); ++i) list.push_back(file.record(i));
  return list.dump();
}

std::string record_error(const std::string& name, const std::string& content) {
  try {
    all_records(name, content);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RecordFile, reads_lines_and_lists_alike) {
  const std::string expected = R"([{"a":1},{"a":"x,]}\"y"},{"a":[{}]}])";
  EXPECT_EQ(all_records("d.jsonl", "{\"a\":1}\n\n{\"a\":\"x,]}\\\"y\"}\r\n{\"a\":[{}]}"), expected);
  EXPECT_EQ(all_records("d.json", "{\"a\":1}\n{\"a\":\"x,]}\\\"y\"}\n{\"a\":[{}]}\n"), expected);
  EXPECT_EQ(all_records("d.json", "\n [ {\"a\":1} ,\n{\"a\":\"x,]}\\\"y\"},{\"a\":[{}]}\n]\n"), expected);
  EXPECT_EQ(all_records("d.jsonl", expected), expected);
  EXPECT_EQ(all_records("d.json", "[]"), "[]");
  EXPECT_EQ(all_records("d.json", ""), "[]");
}

TEST(RecordFile, keeps_every_line_of_a_text) {
  EXPECT_EQ(all_records("d.txt", "one\r\n\n  two \n"), R"([{"text":"one"},{"text":""},{"text":"  two "}])");
}

// Longer than the pieces that a file is read in, so that records cross from one into the next.
TEST(RecordFile, records_may_be_longer_than_a_piece) {
  io::Json list = io::Json::array();
  for (int i = 0; i < 40; ++i)
    list.push_back({{"n", i}, {"text", std::string(static_cast<size_t>(100'003 * (i % 3)), 'x')}});
  EXPECT_EQ(all_records("d.json", list.dump(1)), list.dump());
  std::string lines;
  for (const io::Json& record : list) lines += record.dump() + "\n";
  EXPECT_EQ(all_records("d.jsonl", lines), list.dump());
}

TEST(RecordFile, errors_name_file_and_line) {
  expect_contains(record_error("d.jsonl", "{\"a\":1}\n{\"a\":}\n"), "d.jsonl:2: not valid JSON");
  expect_contains(record_error("d.jsonl", "{\"a\":1}\n\n\n[1]\n"), "d.jsonl:4: a record is [1] (a list)");
  expect_contains(record_error("d.jsonl", "{\"a\":1}\n{\"a\":\"\xff\"}\n"),
                  "d.jsonl:2: byte 6 (0xff) is not valid UTF-8");
  expect_contains(record_error("d.txt", "fine\nbad \xff\n"), "d.txt:2: byte 4 of the line is not valid UTF-8");
  expect_contains(record_error("d.json", "[{\"a\":1},\n{\"a\":1"), "d.json:2: the file ends inside a record");
  expect_contains(record_error("d.json", "[{\"a\":1},\n{\"a\":\"1"), "d.json:2: the file ends inside a text");
  expect_contains(record_error("d.json", "[{\"a\":1}\n"), "d.json:2: the list is not closed");
  expect_contains(record_error("d.json", "[{\"a\":1}\n{\"a\":2}]"), "d.json:2: a comma is missing");
  expect_contains(record_error("d.json", "[{\"a\":1}]\n]"), "d.json:2: something follows the end of the list");
  expect_contains(record_error("d.json", "[{\"a\":1},]"), "d.json:1: a record is missing between commas");
}

TEST(RecordFile, reads_rows_of_tables) {
  EXPECT_EQ(all_records("d.csv", "a,b\n1,\"x\ny\"\n2,\n"), R"([{"a":"1","b":"x\ny"},{"a":"2","b":null}])");
  EXPECT_EQ(all_records("D.TSV", "a\tb\n1\t2\n"), R"([{"a":"1","b":"2"}])");
  expect_contains(record_error("d.csv", "a\nx\n\xff\n"), "d.csv:3: byte 6 (0xff) is not valid UTF-8");
}

TEST(RecordFile, other_types_are_refused) {
  expect_contains(record_error("d.xml", "x"), "give .json, .jsonl, .txt, .csv, .tsv, .parquet or .arrow");
}

}  // namespace
}  // namespace megalith::data

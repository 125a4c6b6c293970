#include "megalith/data/table/csv_file.h"

#include <gtest/gtest.h>

#include "tests/data/table/table_support.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::TemporaryFolder;

// Reads a text as d.csv, in order and by number, which must agree.
io::Json csv_rows(const std::string& text, const std::string& name = "d.csv") {
  const TemporaryFolder folder(TemporaryFolder::Files{{name, text}});
  io::Json rows = rows_in_order(folder.path() / name);
  EXPECT_EQ(rows, rows_by_number(folder.path() / name)) << text;
  return rows;
}

// pandas with dtype=str and nothing but the empty text as a missing value.
TEST(CsvFile, ReadsWhatPandasReads) {
  const io::Json cases = io::parse_json(table_bytes(table_file("csv_cases.json")), "csv_cases.json");
  ASSERT_GE(cases.size(), 25U);
  for (const io::Json& one : cases) {
    const auto text = one.at("csv").get<std::string>();
    if (one.at("records").is_null())
      EXPECT_NE(error_of<DataError>([&] { csv_rows(text); }), "") << text;
    else
      EXPECT_EQ(csv_rows(text), one.at("records")) << text;
  }
}

TEST(CsvFile, ReadsPandasFiles) {
  io::Json expected = json_lines("alpaca.jsonl");
  for (io::Json& row : expected)
    for (auto& [name, value] : row.items())
      if (value == "") value = nullptr;  // an empty field is a missing one
  EXPECT_EQ(rows_in_order(table_file("alpaca.csv")), expected);
  EXPECT_EQ(rows_by_number(table_file("alpaca.csv")), expected);
  EXPECT_EQ(rows_in_order(table_file("alpaca.tsv")), expected);
  EXPECT_EQ(csv_rows("a\tb\n1,2\t\"x\ty\"\n", "d.tsv").dump(), R"([{"a":"1,2","b":"x\ty"}])");
}

// Rows that cross from one piece of the file into the next, at every kind of byte.
TEST(CsvFile, RowsMayBeLongerThanAPiece) {
  std::string text = "n,text\n";
  io::Json expected = io::Json::array();
  for (int i = 0; i < 40; ++i) {
    std::string quoted, value;
    for (int k = 0; k < 20'000 * (i % 4); ++k) {
      quoted += k % 3 == 0 ? "\"\"" : k % 3 == 1 ? "\r\n" : ",";
      value += k % 3 == 0 ? "\"" : k % 3 == 1 ? "\r\n" : ",";
    }
    text += std::to_string(i) + ",\"x" + quoted + "\"\r\n";
    expected.push_back({{"n", std::to_string(i)}, {"text", "x" + value}});
  }
  EXPECT_EQ(csv_rows(text), expected);
}

TEST(CsvFile, PlacesAreLines) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"d.csv", "a,b\n\"1\r1\",x\r\n\r\n2,y\n"}});
  const auto table = open_table_by_number(folder.path() / "d.csv");
  ASSERT_EQ(table->size(), 2);
  EXPECT_EQ(table->number(0), 2);
  EXPECT_EQ(table->number(1), 5);
  const auto reader = open_table(folder.path() / "d.csv");
  std::string text;
  int64_t number = 0;
  for (const int64_t line : {2, 5}) {
    ASSERT_TRUE(reader->next(text, number));
    EXPECT_EQ(number, line);
  }
  EXPECT_FALSE(reader->next(text, number));
}

TEST(CsvFile, ErrorsNameFileAndLine) {
  const auto error = [](const std::string& text) { return error_of<DataError>([&] { csv_rows(text); }); };
  expect_contains(error(""), "d.csv is empty; its first row must name the columns");
  expect_contains(error("\n \n"), "d.csv is empty");
  expect_contains(error("a,b\n1,2\n\n1,2,3\n"), "d.csv:4: the row has 3 fields, and the header names 2 columns");
  expect_contains(error("a,b\n1,2\n3,\"x\ny"), "d.csv:3: the file ends inside quotes");
  expect_contains(error("a,b,a\n1,2,3\n"), "d.csv:1: two columns are called \"a\"");
  expect_contains(error("a\nx\n\"\xff\"\n"), "is not valid UTF-8");
}

}  // namespace
}  // namespace megalith::data

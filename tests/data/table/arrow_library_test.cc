// Parquet and Arrow files that other programs wrote, and what remains of them when they are damaged.
#include "megalith/data/table/arrow_library.h"

#include <gtest/gtest.h>

#include <thread>

#include "megalith/data/random.h"
#include "megalith/data/table/row_spool.h"
#include "tests/data/table/table_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TempFolder;

// Compares as text too: objects are equal whatever the order of their keys.
void expect_rows(const std::string& file, const io::Json& expected) {
  EXPECT_EQ(rows_in_order(table_file(file)).dump(1), expected.dump(1)) << file;
  EXPECT_EQ(rows_by_number(table_file(file)), expected) << file;
}

TEST(ArrowLibrary, ReadsEveryType) {
  const io::Json expected = json_lines("types.jsonl");
  for (const char* file :
       {"types.parquet", "types_file.arrow", "types_stream.arrow", "types_zstd.arrow", "types_lz4.arrow"})
    expect_rows(file, expected);
  expect_rows("only_arrow.arrow", json_lines("only_arrow.jsonl"));
}

TEST(ArrowLibrary, ReadsEveryCodec) {
  const io::Json expected = json_lines("codec.jsonl");
  for (const char* codec : {"none", "snappy", "gzip", "brotli", "lz4", "zstd"})
    expect_rows(std::string("codec_") + codec + ".parquet", expected);
}

TEST(ArrowLibrary, ReadsFilesOfDatasetsAndPandas) {
  io::Json expected = json_lines("chats.jsonl");
  for (const char* file : {"chats.parquet", "chats.arrow"}) {
    io::Json rows = rows_in_order(table_file(file));
    ASSERT_EQ(rows.size(), expected.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_NEAR(rows[i].at("score").get<double>(), expected[i].at("score").get<double>(), 1e-9);  // 10 digits in JSON
      rows[i]["score"] = expected[i].at("score");
    }
    EXPECT_EQ(rows.dump(1), expected.dump(1)) << file;
  }
  expect_rows("alpaca.parquet", json_lines("alpaca.jsonl"));
}

// A piece of text ends within a row group, a row group within a piece: rows are neither lost nor doubled.
TEST(ArrowLibrary, NumbersRowsFromOne) {
  const auto reader = open_table(table_file("chats.parquet"));
  std::string text;
  int64_t number = 0;
  for (int64_t row = 1; reader->next(text, number); ++row) {
    EXPECT_EQ(number, row);
    EXPECT_EQ(io::parse_json(text, "row").at("id"), row - 1);
  }
  EXPECT_EQ(number, 60);
}

TEST(ArrowLibrary, ThreadsReadByNumber) {
  const io::Json expected = json_lines("chats.jsonl");
  const TempFolder folder;
  const auto table = open_table_by_number(table_file("chats.parquet"), folder.path() / "made" / "here");
  EXPECT_EQ(table->size(), 60);
  EXPECT_FALSE(fs::exists(folder.path() / "made"));  // nothing is decoded before a row is asked for
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      RandomStream random(static_cast<uint64_t>(t));
      for (int i = 0; i < 200; ++i) {
        const auto row = static_cast<int64_t>(random.below(60));
        EXPECT_EQ(io::parse_json(table->text(row), "row").at("id"), row);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fs::is_empty(folder.path() / "made" / "here"));  // the file with the rows has no name
  expect_contains(error_of([&] { table->text(60); }), "row 60 of 60 does not exist");
}

TEST(ArrowLibrary, ErrorsNameTheFile) {
  const TempFolder folder;
  const auto error = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return error_of<DataError>([&] { rows_in_order(folder / name); });
  };
  expect_contains(error("d.parquet", ""), "d.parquet: ");
  expect_contains(error("d.parquet", "{\"text\": \"JSON in a parquet file\"}"),
                  "d.parquet: Parquet magic bytes not found");
  expect_contains(error("d.arrow", "{\"text\": \"JSON in an arrow file\"}"), "d.arrow: ");
  expect_contains(error("d.arrow", "ARROW1"), "d.arrow: ");
  const std::string whole = table_bytes(table_file("chats.parquet"));
  expect_contains(error("d.parquet", whole.substr(0, whole.size() - 1)), "d.parquet: Parquet magic bytes not found");
  expect_contains(error("d.parquet", whole.substr(100)), "d.parquet: ");
  const std::string file = table_bytes(table_file("types_file.arrow"));
  expect_contains(error("d.arrow", file.substr(0, file.size() - 9)), "d.arrow: ");
  const std::string stream = table_bytes(table_file("types_stream.arrow"));
  expect_contains(error("d.arrow", stream.substr(0, stream.size() - 700)), "d.arrow: nothing after row ");
  expect_contains(error_of<DataError>([&] { open_table(folder / "gone.parquet"); }), "gone.parquet: ");
  expect_contains(error_of<DataError>([] { open_table(table_file("union.arrow")); }),
                  "union.arrow: column \"either\" has the type sparse_union<");
}

// Whatever happens to a file, it gives rows or an error: no crash, no hang, and nothing but DataError.
TEST(ArrowLibrary, DamagedFilesGiveRowsOrAnError) {
  const TempFolder folder;
  RandomStream random(11);
  int refused = 0;
  constexpr int kRounds = 600;
  const std::vector<std::string> names{"types.parquet",    "chats.parquet",   "codec_zstd.parquet",
                                       "types_file.arrow", "types_lz4.arrow", "types_stream.arrow",
                                       "chats.arrow"};
  for (int round = 0; round < kRounds; ++round) {
    const std::string& name = names[random.below(names.size())];
    std::string bytes = table_bytes(table_file(name));
    if (round % 3 == 0) {
      bytes.resize(random.below(bytes.size()));
    } else {
      for (uint64_t left = 1 + random.below(4); left > 0; --left)
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    }
    const fs::path path = folder / ("d" + fs::path(name).extension().string());
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      rows_in_order(path);
      rows_by_number(path);
    } catch (const DataError& error) {
      expect_contains(error.what(), "d" + fs::path(name).extension().string());
      ++refused;
    }
  }
  EXPECT_GT(refused, kRounds / 3);  // every cut but one at the end of a batch, and most of the rest
}

}  // namespace
}  // namespace megalith::data

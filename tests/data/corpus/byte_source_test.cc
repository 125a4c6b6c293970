#include "megalith/data/corpus/byte_source.h"

#include <gtest/gtest.h>

#include "megalith/data/corpus/line_blocks.h"
#include "tests/data/data_support.h"
#include "tests/support/subprocess.h"

namespace megalith::data {
namespace {

std::string read_all(const std::string& path) {
  const auto source = open_bytes(path);
  std::string text;
  std::vector<char> block(1000);
  while (const size_t count = source->read(block)) text.append(block.data(), count);
  return text;
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += fmt::format("line {} of this text\n", i * i);
  return text;
}

// `packed` from the tool of that name; nothing when it is not installed.
std::optional<std::string> packed_by(const std::string& tool, const std::string& text) {
  const TempFolder temp;
  put_file(temp / "in", text);
  const auto run = testing::run_process(
      {"/bin/sh", "-c", fmt::format("{} -c {} > {}", tool, (temp / "in").string(), (temp / "out").string())});
  if (run.exit_code != 0) return std::nullopt;
  return file_bytes(temp / "out");
}

void expect_unpacked(const std::string& tool) {
  const std::string text = long_text();
  const auto packed = packed_by(tool, text);
  if (!packed) GTEST_SKIP() << "the program " << tool << " is not installed";
  const TempFolder temp;
  EXPECT_EQ(read_all(put_file(temp / "a.packed", *packed)), text);
  EXPECT_EQ(read_all(put_file(temp / "twice", *packed + *packed)), text + text);
  for (const size_t size : {packed->size() - 1, packed->size() / 2, size_t{20}}) {
    const std::string path = put_file(temp / "cut", packed->substr(0, size));
    expect_contains(message_of<DataError>([&] { read_all(path); }), path + ": the ");
  }
  std::string damaged = *packed;
  for (size_t i = damaged.size() / 2; i < damaged.size() / 2 + 50; ++i) damaged[i] ^= 0x55;
  const std::string path = put_file(temp / "damaged", damaged);
  expect_contains(message_of<DataError>([&] { read_all(path); }), path + ": the ");
}

#ifdef MEGALITH_ZLIB
TEST(ByteSource, Gzip) { expect_unpacked("gzip"); }
#endif
#ifdef MEGALITH_ZSTD
TEST(ByteSource, Zstd) { expect_unpacked("zstd"); }
#endif

TEST(ByteSource, PlainFiles) {
  const TempFolder temp;
  EXPECT_EQ(read_all(put_file(temp / "a", "text")), "text");
  EXPECT_EQ(read_all(put_file(temp / "a", "")), "");
  expect_contains(message_of<DataError>([&] { read_all(temp / "gone"); }), "gone: No such file");
  expect_contains(message_of<DataError>([&] { read_all(temp.path()); }), temp.path().string());
}

TEST(LineBlocks, WholeLinesWithTheirNumbers) {
  const TempFolder temp;
  const std::string first = put_file(temp / "1", "a\nbb\n\nccc\nthe last one");
  const std::string second = put_file(temp / "2", "x\n");
  const std::string empty = put_file(temp / "3", "");
  for (const size_t block_bytes : {size_t{1}, size_t{2}, size_t{5}, size_t{1000}}) {
    LineBlocks blocks({first, empty, second}, block_bytes);
    std::string text;
    while (const auto block = blocks.next()) {
      EXPECT_EQ(block->first_line, block->input == first ? 1 + std::ranges::count(text, '\n') : 1);
      EXPECT_TRUE(block->text.ends_with("\n") || block->text.ends_with("one")) << block->text;
      text += block->text;
    }
    EXPECT_EQ(text, "a\nbb\n\nccc\nthe last onex\n");
  }
}

}  // namespace
}  // namespace megalith::data

#include "megalith/observe/dashboard/line_tail.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/inside_file.h"
#include "tests/observe/dashboard/run_folder.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

namespace fs = std::filesystem;
using Change = LineTail::Change;
using Lines = std::vector<std::string>;

class Tail : public ::testing::Test {
 protected:
  Change poll() {
    return tail_.poll([this](std::string_view line) { lines_.emplace_back(line); }, [this] { lines_.clear(); });
  }
  RunFolder folder_;
  LineTail tail_{folder_.path(), "m.jsonl"};
  Lines lines_;
};

TEST_F(Tail, FollowsAFileThatAppearsAndGrows) {
  EXPECT_EQ(poll(), Change::kNone);
  EXPECT_FALSE(tail_.exists());
  folder_.write("m.jsonl", "a\nb\nc");
  EXPECT_EQ(poll(), Change::kGrown);
  EXPECT_EQ(lines_, (Lines{"a", "b"})) << "c has no end yet";
  EXPECT_EQ(poll(), Change::kNone);
  folder_.append("m.jsonl", "c\n\nd\n");
  EXPECT_EQ(poll(), Change::kGrown);
  EXPECT_EQ(lines_, (Lines{"a", "b", "cc", "", "d"}));
  EXPECT_EQ(tail_.bytes(), 10U);
}

TEST_F(Tail, StartsAgainWhenTheFileIsCutReplacedOrRewritten) {
  folder_.write("m.jsonl", "one\ntwo\nthree\n");
  poll();
  folder_.write("m.jsonl", "one\n");
  EXPECT_EQ(poll(), Change::kStartedAnew) << "cut";
  EXPECT_EQ(lines_, Lines{"one"});
  folder_.write("other", "uno\ndue\ntre\n");
  fs::rename(folder_ / "other", folder_ / "m.jsonl");
  EXPECT_EQ(poll(), Change::kStartedAnew) << "replaced by a longer one, as a resumed run does";
  EXPECT_EQ(lines_, (Lines{"uno", "due", "tre"}));
  folder_.write("m.jsonl", "eins\nzwei\ndrei\nvier\n");
  EXPECT_EQ(poll(), Change::kStartedAnew) << "rewritten in place, longer than before";
  EXPECT_EQ(lines_.size(), 4U);
  fs::remove(folder_ / "m.jsonl");
  EXPECT_EQ(poll(), Change::kStartedAnew) << "gone";
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(poll(), Change::kNone);
}

TEST_F(Tail, LinesOfAnyLengthDoNotFillTheMemory) {
  const std::string huge(LineTail::kMostLineBytes * 2 + 10, 'x');
  folder_.write("m.jsonl", "a\n" + huge + "\nb\n");
  EXPECT_EQ(poll(), Change::kGrown);
  ASSERT_GE(lines_.size(), 3U);
  EXPECT_EQ(lines_.front(), "a");
  EXPECT_EQ(lines_.back(), "b");
  EXPECT_EQ(lines_[1], "");
  for (const std::string& line : lines_) EXPECT_LE(line.size(), LineTail::kMostLineBytes);
}

TEST_F(Tail, LinesOverTheEndsOfReadsArriveWhole) {
  std::string text;
  Lines expected;
  for (int i = 0; text.size() < 3 * LineTail::kMostLineBytes; ++i) {
    expected.push_back(std::to_string(i) + std::string(static_cast<size_t>(i % 4093), 'y'));
    text += expected.back() + "\n";
  }
  folder_.write("m.jsonl", text);
  EXPECT_EQ(poll(), Change::kGrown);
  EXPECT_TRUE(lines_ == expected);
}

TEST_F(Tail, NothingOutsideTheFolderIsRead) {
  const RunFolder other;
  other.write("secret", "password\n");
  fs::create_symlink(other / "secret", folder_ / "m.jsonl");
  testing::expect_error<DataError>([&] { poll(); }, {"m.jsonl", "leads out of the run's folder"});
  fs::remove(folder_ / "m.jsonl");
  folder_.write("inner/real", "fine\n");
  fs::create_symlink("inner/real", folder_ / "m.jsonl");
  EXPECT_EQ(poll(), Change::kGrown) << "a link that stays inside";
  EXPECT_EQ(lines_, Lines{"fine"});
  EXPECT_THROW(InsideFile::open(folder_.path(), "../" + other.path().filename().string() + "/secret"), DataError);
  EXPECT_FALSE(InsideFile::open(folder_.path(), "absent").has_value());
}

TEST_F(Tail, AFifoOrAFolderIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((folder_ / "m.jsonl").c_str(), 0600), 0);
  testing::expect_error<DataError>([&] { poll(); }, {"not a regular file"});
  fs::remove(folder_ / "m.jsonl");
  fs::create_directory(folder_ / "m.jsonl");
  testing::expect_error<DataError>([&] { poll(); }, {"not a regular file"});
}

TEST_F(Tail, AFolderWhoseNameBeginsTheSameIsOutside) {
  const fs::path beside = folder_.path().string() + "-beside";
  fs::create_directory(beside);
  std::ofstream(beside / "secret") << "password\n";
  fs::create_symlink(beside / "secret", folder_ / "m.jsonl");
  EXPECT_THROW(poll(), DataError);
  fs::remove_all(beside);
}

}  // namespace
}  // namespace megalith::observe

#include "megalith/io/staged_folder.h"

#include "megalith/io/staged_folder_internal.h"
#include "tests/io/file_support.h"
#include "tests/support/expect.h"

namespace megalith::io {
namespace {

using testing::expect_contains;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

using Names = std::vector<std::string>;

TEST(StagedFolder, AppearsWhenItIsCommitted) {
  const TempFolder folder;
  StagedFolder staged(folder / "deep/out/", "1");
  EXPECT_EQ(staged.path(), folder / "deep/out.tmp-1");
  put_file(staged.path() / "sub/weights", "w");
  EXPECT_FALSE(fs::exists(folder / "deep/out"));
  staged.commit();
  EXPECT_EQ(file_bytes(folder / "deep/out/sub/weights"), "w");
  EXPECT_EQ(names_in(folder / "deep"), (Names{"out"}));
}

TEST(StagedFolder, LeavesNothingWhenItIsNotCommitted) {
  const TempFolder folder;
  try {
    const StagedFolder staged(folder / "out", "1");
    put_file(staged.path() / "half", "w");
    throw DataError("disk full");
  } catch (const DataError&) {
  }
  EXPECT_EQ(names_in(folder.path()), Names{});
}

TEST(StagedFolder, AFolderWithSomethingInItIsNotTouched) {
  const TempFolder folder;
  put_file(folder / "out/keep", "old");
  const std::string message = message_of<ConfigError>([&] { const StagedFolder staged(folder / "out", "1"); });
  expect_contains(message, (folder / "out").string());
  expect_contains(message, "keep");
  EXPECT_EQ(names_in(folder.path()), (Names{"out"}));
  put_file(folder / "file", "x");
  expect_contains(
      message_of<ConfigError>([&] { const StagedFolder staged(folder / "file", "1", {.overwrite = true}); }),
      "is a file");
}

TEST(StagedFolder, SomethingThatAppearsMeanwhileIsNotTouchedEither) {
  const TempFolder folder;
  StagedFolder staged(folder / "out", "1");
  put_file(folder / "out/other", "x");
  EXPECT_THROW(staged.commit(), ConfigError);
  EXPECT_EQ(file_bytes(folder / "out/other"), "x");
}

TEST(StagedFolder, AnEmptyFolderIsFilled) {
  const TempFolder folder;
  fs::create_directory(folder / "out");
  StagedFolder staged(folder / "out", "1");
  put_file(staged.path() / "new", "n");
  staged.commit();
  EXPECT_EQ(names_in(folder / "out"), (Names{"new"}));
}

TEST(StagedFolder, OverwritingReplacesTheWholeFolder) {
  const TempFolder folder;
  put_file(folder / "out/old", "o");
  {
    const StagedFolder given_up(folder / "out", "0", {.overwrite = true});
    put_file(given_up.path() / "half", "h");
  }
  EXPECT_EQ(names_in(folder / "out"), (Names{"old"}));
  StagedFolder staged(folder / "out", "1", {.overwrite = true});
  put_file(staged.path() / "new", "n");
  EXPECT_EQ(names_in(folder / "out"), (Names{"old"}));
  staged.commit();
  EXPECT_EQ(names_in(folder / "out"), (Names{"new"}));
  EXPECT_EQ(names_in(folder.path()), (Names{"out"}));
}

// File systems that cannot exchange two names.
TEST(StagedFolder, ReplacingByRenamesLosesNothing) {
  const TempFolder folder;
  put_file(folder / "out/old", "o");
  EXPECT_THROW(replace_by_renames(folder / "absent", folder / "out", folder / "out.old-1"), DataError);
  EXPECT_EQ(names_in(folder / "out"), (Names{"old"}));
  put_file(folder / "staged/new", "n");
  put_file(folder / "out.old-1/left", "by a killed run");
  replace_by_renames(folder / "staged", folder / "out", folder / "out.old-1");
  EXPECT_EQ(names_in(folder / "out"), (Names{"new"}));
  EXPECT_EQ(names_in(folder.path()), (Names{"out"}));
}

TEST(StagedFolder, ALinkStaysALink) {
  const TempFolder folder;
  put_file(folder / "real/old", "o");
  fs::create_directory_symlink(folder / "real", folder / "out");
  StagedFolder staged(folder / "out", "1", {.overwrite = true});
  put_file(staged.path() / "new", "n");
  staged.commit();
  EXPECT_TRUE(fs::is_symlink(folder / "out"));
  EXPECT_EQ(names_in(folder / "out"), (Names{"new"}));
}

TEST(StagedFolder, RemovesWhatAKilledRunLeft) {
  const TempFolder folder;
  put_file(folder / "out.tmp-1/junk", "j");
  StagedFolder staged(folder / "out", "1");
  staged.commit();
  EXPECT_EQ(names_in(folder / "out"), Names{});
}

TEST(StagedFolder, GuestsOnlyKnowThePlace) {
  const TempFolder folder;
  StagedFolder owner(folder / "out", "7");
  {
    StagedFolder guest(folder / "out", "7", {.owner = false});
    EXPECT_EQ(guest.path(), owner.path());
    put_file(guest.path() / "mine", "m");
    guest.commit();
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
  owner.commit();
  EXPECT_EQ(names_in(folder / "out"), (Names{"mine"}));
}

TEST(StagedFolder, TagsAreNames) {
  const TempFolder folder;
  EXPECT_THROW(StagedFolder(folder / "out", "../x"), InternalError);
  EXPECT_THROW(StagedFolder(folder / "out", ""), InternalError);
  EXPECT_THROW(StagedFolder("", "1"), ConfigError);
}

}  // namespace
}  // namespace megalith::io

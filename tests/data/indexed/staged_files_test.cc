#include "megalith/data/indexed/staged_files.h"

#include <gtest/gtest.h>

#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

std::vector<std::string> staged_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

using Names = std::vector<std::string>;

TEST(StagedFiles, AppearTogether) {
  const TempFolder temp;
  StagedFiles files;
  files.create(temp / "a").write_at(0, "1", 1);
  files.create(temp / "b").write_at(0, "2", 1);
  EXPECT_EQ(staged_names(temp.path()), (Names{"a.tmp", "b.tmp"}));
  files.commit();
  EXPECT_EQ(staged_names(temp.path()), (Names{"a", "b"}));
  EXPECT_EQ(file_bytes(temp / "b"), "2");
}

TEST(StagedFiles, ReplaceWhatIsThere) {
  const TempFolder temp;
  put_file(temp / "a", "old");
  put_file(temp / "b", "old");
  StagedFiles files;
  for (const char* name : {"a", "b"}) files.create(temp / name).write_at(0, "1", 1);
  EXPECT_EQ(file_bytes(temp / "a"), "old");
  files.commit();
  EXPECT_EQ(file_bytes(temp / "a") + file_bytes(temp / "b"), "11");
}

TEST(StagedFiles, AreGoneWithoutCommit) {
  const TempFolder temp;
  { StagedFiles().create(temp / "a"); }
  EXPECT_EQ(staged_names(temp.path()), Names{});
  StagedFiles files;
  files.create(temp / "a");
  files.discard();
  EXPECT_EQ(staged_names(temp.path()), Names{});
  files.commit();
  EXPECT_EQ(staged_names(temp.path()), Names{});
  EXPECT_THROW(files.create(temp / "b"), DataError);
}

TEST(StagedFiles, WhatAKilledProcessLeftIsOverwritten) {
  const TempFolder temp;
  put_file(temp / "a.tmp", "a long rest of an earlier run");
  StagedFiles files;
  files.create(temp / "a").write_at(0, "new", 3);
  files.commit();
  EXPECT_EQ(file_bytes(temp / "a"), "new");
}

TEST(StagedFiles, TwoWritersOfOneFileAreRefused) {
  const TempFolder temp;
  StagedFiles first, second;
  first.create(temp / "a").write_at(0, "1", 1);
  expect_contains(message_of<ConfigError>([&] { second.create(temp / "a"); }), "is being written by another process");
  first.commit();
  EXPECT_EQ(file_bytes(temp / "a"), "1");
}

}  // namespace
}  // namespace megalith::data

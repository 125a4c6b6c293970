#include "megalith/io/file_io.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "tests/io/file_support.h"
#include "tests/support/expect.h"

namespace megalith::io {
namespace {

using testing::expect_contains;

TEST(FileIo, WhatIsWrittenIsRead) {
  const TempFolder folder;
  write_text_file(folder / "a.txt", "one");
  write_text_file(folder / "a.txt", "two\n");
  EXPECT_EQ(read_text_file(folder / "a.txt", 100), "two\n");
  sync_folder(folder.path());
}

TEST(FileIo, AFileIsReplacedOrStaysAsItWas) {
  const TempFolder folder;
  replace_text_file(folder / "a.txt", "one");
  replace_text_file(folder / "a.txt", "two");
  EXPECT_EQ(read_text_file(folder / "a.txt", 100), "two");
  std::filesystem::create_directory(folder / "b");
  write_text_file(folder / "b" / "inside", "");
  const std::string message = testing::error_of<DataError>([&] { replace_text_file(folder / "b", "three"); });
  expect_contains(message, (folder / "b").string());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST(FileIo, FoldersAreMadeOrNamed) {
  const TempFolder folder;
  make_folders(folder / "a" / "b");
  make_folders(folder / "a" / "b");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a" / "b"));
  write_text_file(folder / "file", "");
  for (const auto& bad : {folder / "file", folder / "file" / "inside"})
    expect_contains(testing::error_of<DataError>([&] { make_folders(bad); }), bad.string());
}

TEST(FileIo, WritesGoWhereTheyAreTold) {
  const TempFolder folder;
  const FileHandle file = FileHandle::create(folder / "a");
  file.allocate(6);
  EXPECT_EQ(file.size(), 6U);
  file.write_at(4, "ef", 2);
  file.write_at(0, "ab", 2);
  EXPECT_EQ(file_bytes(folder / "a"), (std::string{'a', 'b', '\0', '\0', 'e', 'f'}));
}

TEST(FileIo, FailuresNameTheFileAndTheReason) {
  const TempFolder folder;
  const std::string absent = message_of<DataError>([&] { read_text_file(folder / "absent", 10); });
  expect_contains(absent, (folder / "absent").string());
  expect_contains(absent, "No such file");
  expect_contains(message_of<DataError>([&] { write_text_file(folder / "no/such/folder", "x"); }), "no/such/folder");
  expect_contains(message_of<DataError>([&] { read_text_file(folder.path(), 10); }), "a folder, a pipe or a device");
  // A pipe that nobody writes to must not hold the reader.
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_contains(message_of<DataError>([&] { read_text_file(folder / "pipe", 10); }), "a folder, a pipe or a device");
  put_file(folder / "long", "123456");
  expect_contains(message_of<DataError>([&] { read_text_file(folder / "long", 5); }), "has 6 bytes; at most 5");
}

// A limit on file sizes stands for a full disk: the same calls fail.
TEST(FileIo, NoRoomIsAnErrorThatNamesTheFile) {
  const TempFolder folder;
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limit = before;
  limit.rlim_cur = 1000;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &limit);
  const FileHandle file = FileHandle::create(folder / "big");
  const std::string allocated = message_of<DataError>([&] { file.allocate(5000); });
  const std::string data(5000, 'x');
  const std::string written = message_of<DataError>([&] { file.write_at(0, data.data(), data.size()); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  for (const std::string& message : {allocated, written}) {
    expect_contains(message, (folder / "big").string());
    expect_contains(message, "File too large");
  }
}

}  // namespace
}  // namespace megalith::io

#include "megalith/data/gpt/index_array.h"

#include <gtest/gtest.h>

#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

std::string written(const IndexArray& array, const std::filesystem::path& path) {
  StagedFiles files;
  array.write_npy(files.create(path));
  files.commit();
  return file_bytes(path);
}

TEST(IndexArray, ThroughAFile) {
  const TempFolder temp;
  const auto expect_back = [&](const IndexArray& array) {
    written(array, temp / "a.npy");
    const IndexArray read = IndexArray::open_npy(temp / "a.npy");
    EXPECT_EQ(read.type(), array.type());
    ASSERT_EQ(read.shape(), array.shape());
    const int64_t count = array.rows() * (array.shape().size() == 2 ? array.shape()[1] : 1);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(read[i], array[i]);
  };
  expect_back(IndexArray(std::vector<int16_t>{-5, 32767}, {2}));
  expect_back(IndexArray(std::vector<int32_t>{1, 2, 3, 4, 5, -6}, {3, 2}));
  expect_back(IndexArray(std::vector<int64_t>{int64_t{1} << 60}, {1}));
  expect_back(IndexArray(std::vector<uint32_t>{0xFFFFFFFF}, {1}));
  expect_back(IndexArray(std::vector<int32_t>{}, {0}));
}

TEST(IndexArray, DamagedFilesAreRefused) {
  const TempFolder temp;
  const std::string path = temp / "a.npy";
  const std::string good = written(IndexArray(std::vector<int32_t>{1, 2, 3}, {3}), path);
  const auto refused = [&](const std::string& bytes) {
    put_file(path, bytes);
    const std::string text = message_of<DataError>([&] { IndexArray::open_npy(path); });
    expect_contains(text, path + ": byte ");
  };
  for (size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size));
  refused(good + "x");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    bytes.replace(bytes.find(from), from.size(), to);
    return bytes;
  };
  refused(with("<i4", ">i4"));
  refused(with("<i4", "<f8"));
  refused(with("False", "True "));
  refused(with("(3,)", "(4,)"));
  refused(with("(3,)", "(,,)"));
  refused(with("NUMPY\x01", "NUMPY\x03"));
}

}  // namespace
}  // namespace megalith::data

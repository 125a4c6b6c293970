// The files of a teacher's logits: what is written is read, and what is broken is named.
#include "megalith/train/distillation/teacher_files.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/scalar_type.h"
#include "megalith/train/distillation/file_objective.h"
#include "megalith/train/distillation/taught_samples.h"
#include "megalith/train/distillation/teacher_shard_writer.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using train::SampleKey;
using train::TaughtRows;
using train::TeacherFiles;
using train::TeacherIndex;

constexpr int64_t kSamples = 5, kClasses = 3;

SampleKey key_number(int64_t i) { return {static_cast<uint64_t>(i) * 7919, ~static_cast<uint64_t>(i)}; }

// Sample i has i + 1 labelled tokens.
TaughtRows rows_number(int64_t i) {
  const int64_t n = i + 1;
  return {.ids = at::arange(n * kClasses, at::kLong).view({n, kClasses}) + i,
          .log_probs = -at::arange(n * kClasses, at::kFloat).view({n, kClasses}) / 8 - i,
          .log_tails = -at::arange(n * 2, at::kFloat).view({n, 2}) - 1};
}

class TeacherFilesTest : public ::testing::Test {
 protected:
  // Small files: two or three samples each.
  TeacherIndex write(hf::Dtype dtype = hf::Dtype::kF32, uint64_t file_bytes = 100) {
    TeacherIndex index{.classes = kClasses,
                       .vocab_size = 50,
                       .dtype = dtype,
                       .temperatures = {1, 2},
                       .teacher = "big",
                       .data = {{"cutoff_len", "128"}}};
    train::TeacherShardWriter writer(folder_.path(), index, /*replica=*/3, file_bytes);
    for (int64_t i = 0; i < kSamples; ++i) writer.add(key_number(i), rows_number(i));
    index.shards = writer.finish();
    train::write_teacher_index(folder_.path(), index);
    return index;
  }

  std::string shard(size_t number) const { return train::read_teacher_index(folder_.path()).shards[number].file; }
  // Replaces bytes of a file, from its end.
  void damage(const fs::path& file, int64_t from_end) const {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-from_end, std::ios::end);
    stream.put('\x5a');
  }

  TempFolder folder_;
};

TEST_F(TeacherFilesTest, AreReadAsTheyWereWritten) {
  for (const hf::Dtype dtype : {hf::Dtype::kF32, hf::Dtype::kBF16, hf::Dtype::kF16}) {
    const TeacherIndex written = write(dtype);
    EXPECT_GT(written.shards.size(), 1U);
    const TeacherFiles files(folder_.path());
    EXPECT_EQ(files.index().teacher, "big");
    EXPECT_EQ(files.index().data.at("cutoff_len"), "128");
    EXPECT_EQ(files.index().tail_of(2), 1);
    EXPECT_FALSE(files.index().tail_of(3));
    for (int64_t i = 0; i < kSamples; ++i) {
      EXPECT_EQ(files.tokens_of(key_number(i)), i + 1);
      const TaughtRows expected = rows_number(i), found = files.rows_of(key_number(i));
      expect_identical(found.ids, expected.ids.to(at::kInt), "ids");
      expect_identical(found.log_probs, expected.log_probs.to(hf::scalar_type(dtype)), "log-probabilities");
      expect_identical(found.log_tails, expected.log_tails, "tails");
    }
    EXPECT_FALSE(files.tokens_of(key_number(77)));
  }
}

// A log-probability that fp16 cannot hold stays finite.
TEST_F(TeacherFilesTest, HalvesStayFinite) {
  TeacherIndex index{.classes = 2, .vocab_size = 2, .dtype = hf::Dtype::kF16, .temperatures = {1}, .teacher = "big"};
  train::TeacherShardWriter writer(folder_.path(), index, 0, 100);
  writer.add(key_number(0), {at::zeros({1, 2}, at::kLong), at::tensor({0.F, -1e6F}).view({1, 2}), at::Tensor()});
  index.shards = writer.finish();
  train::write_teacher_index(folder_.path(), index);
  const TaughtRows rows = TeacherFiles(folder_.path()).rows_of(key_number(0));
  EXPECT_TRUE(rows.log_probs.isfinite().all().item<bool>());
  EXPECT_FALSE(rows.log_tails.defined());
}

TEST_F(TeacherFilesTest, NumbersThatAreNoneAreRefused) {
  const TeacherIndex index{.classes = 1, .vocab_size = 2, .temperatures = {1}, .teacher = "big"};
  train::TeacherShardWriter writer(folder_.path(), index, 0, 100);
  expect_error<DataError>(
      [&] {
        writer.add(key_number(0),
                   {at::zeros({1, 1}, at::kLong), at::full({1, 1}, NAN, at::kFloat), at::zeros({1, 1}, at::kFloat)});
      },
      {"not numbers"});
}

TEST_F(TeacherFilesTest, BrokenFilesAreNamed) {
  const auto refused = [&](const std::vector<std::string>& parts) {
    expect_error<DataError>([&] { TeacherFiles files(folder_.path()); }, parts);
  };
  refused({"holds no index.json", "megalith distill"});
  write();
  const std::string first = shard(0), second = shard(1);
  fs::resize_file(folder_ / first, fs::file_size(folder_ / first) - 1);
  refused({first});
  write();
  fs::copy_file(folder_ / second, folder_ / first, fs::copy_options::overwrite_existing);
  refused({first, "must be"});
  write();
  fs::remove(folder_ / second);
  refused({second});
  write();
  std::ofstream(folder_ / "index.json") << R"({"format": "megalith teacher logits 99"})";
  refused({"index.json", "megalith teacher logits 1"});
  std::ofstream(folder_ / "index.json") << "{";
  refused({"index.json"});
}

// Another file of the same shapes is not taken for the one that the index lists.
TEST_F(TeacherFilesTest, OtherFilesOfTheSameShapesAreNamed) {
  write();
  const std::string first = shard(0);
  nlohmann::json index = nlohmann::json::parse(std::ifstream(folder_ / "index.json"));
  index["files"][0]["crc32c"] = "00000000";
  std::ofstream(folder_ / "index.json") << index;
  expect_error<DataError>([&] { TeacherFiles files(folder_.path()); }, {first, "00000000", "another one"});
}

// Rows are looked at when they are used, and only then.
TEST_F(TeacherFilesTest, DamagedRowsAreNamed) {
  write(hf::Dtype::kF32, 1 << 20);
  const fs::path file = folder_ / shard(0);
  damage(file, 2);
  const TeacherFiles files(folder_.path());
  int damaged = 0;
  for (int64_t i = 0; i < kSamples; ++i) {
    const std::string message = error_of<DataError>([&] { files.rows_of(key_number(i)); });
    if (message.empty()) continue;
    ++damaged;
    expect_contains(message, file.string());
    expect_contains(message, "damaged");
  }
  EXPECT_EQ(damaged, 1);
}

TEST(TeacherIndexCheck, NamesWhatTheFilesLack) {
  const TeacherIndex index{.classes = 8, .vocab_size = 50, .temperatures = {1, 2}};
  train::check_teacher_index(index, {.temperature = 2});
  train::check_teacher_index(index, {.temperature = 3, .tail = false});
  expect_error<ConfigError>([&] { train::check_teacher_index(index, {.temperature = 3}); },
                            {"kd_temperature is 3", "1 and 2"});
  expect_error<ConfigError>([&] { train::check_teacher_index(index, {.tail = false, .classes = 1}); },
                            {"kd_tail is false"});
  expect_error<ConfigError>([&] { train::check_teacher_index(index, {.classes = 9}); },
                            {"kd_top_k is 9", "8 likeliest"});
}

// ---- Texts of a row ----

data::Sequence row_of(const std::vector<int32_t>& ids, const std::vector<int32_t>& labels) {
  return {.ids = ids, .labels = labels};
}

// The label of a text's first token is predicted by nothing.
TEST(TaughtUnits, AreTheTextsOfARow) {
  const data::Sequence a = row_of({1, 2, 3}, {1, -100, 3}), b = row_of({4, 5}, {4, 5}), none = row_of({6}, {6});
  const auto of_a = train::units_of(a), of_b = train::units_of(b);
  ASSERT_EQ(of_a.size(), 1U);
  EXPECT_EQ(of_a[0].labels, std::vector<int64_t>{2});
  ASSERT_EQ(of_b.size(), 1U);
  EXPECT_TRUE(train::units_of(none).empty());
  data::Sequence packed = row_of({1, 2, 3, 4, 5, 6, 0, 0}, {1, -100, 3, 4, 5, 6, -100, -100});
  packed.pieces = {3, 2, 1};
  const auto separate = train::units_of(packed);
  ASSERT_EQ(separate.size(), 2U);
  EXPECT_EQ(separate[0].key, of_a[0].key);
  EXPECT_EQ(separate[1].key, of_b[0].key);
  EXPECT_EQ(separate[1].labels, std::vector<int64_t>{4});
  packed.pieces_attend = true;
  const auto together = train::units_of(packed);
  ASSERT_EQ(together.size(), 1U);
  EXPECT_EQ(together[0].labels, (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_NE(together[0].key, of_a[0].key);
}

TEST(TaughtUnits, OtherIdsLabelsAndCutsAreOtherTexts) {
  const data::Sequence row = row_of({1, 2, 3}, {-100, 2, 3});
  const auto key = [](const data::Sequence& of) { return train::units_of(of).at(0).key; };
  EXPECT_EQ(key(row), key(row_of({1, 2, 3}, {-100, 2, 3})));
  EXPECT_NE(key(row), key(row_of({1, 2, 4}, {-100, 2, 3})));
  EXPECT_NE(key(row), key(row_of({1, 2, 3}, {-100, -100, 3})));
  EXPECT_NE(key(row), key(row_of({1, 2}, {-100, 2})));
}

}  // namespace
}  // namespace megalith::testing

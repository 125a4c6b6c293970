// Properties of samples that hold whatever the data is.
#include "megalith/data/gpt/gpt_dataset.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "megalith/data/gpt/gpt_index.h"
#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

// Sequences whose tokens are all different: 1, 2, 3, … over the whole source.
class Numbered final : public SequenceSource {
 public:
  explicit Numbered(std::vector<int64_t> lengths) : lengths_(std::move(lengths)), starts_{1} {
    for (const int64_t length : lengths_) starts_.push_back(starts_.back() + length);
  }
  const std::string& name() const override { return name_; }
  int64_t sequence_count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = starts_[static_cast<size_t>(sequence)] + offset + static_cast<int64_t>(i);
  }
  int64_t tokens() const { return starts_.back() - 1; }

 private:
  std::string name_ = "numbered";
  std::vector<int64_t> lengths_, starts_;
};

TEST(GptDataset, EverySampleIsFullAndEpochsUseEveryTokenEquallyOften) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> lengths(1 + random() % 30);
    for (int64_t& length : lengths) length = static_cast<int64_t>(random() % 25);
    lengths[0] += 2;
    const auto source = std::make_shared<Numbered>(lengths);
    const GptIndexRequest request{.end = source->sequence_count(),
                                  .samples = static_cast<int64_t>(random() % 100),
                                  .seq_length = static_cast<int64_t>(1 + random() % 20),
                                  .seed = static_cast<uint32_t>(random())};
    const EpochPlan plan = plan_epochs(*source, request);
    const GptDataset dataset(source, request, {.eod_id = 0});
    ASSERT_EQ(dataset.size(), plan.samples);
    ASSERT_GE(dataset.size(), *request.samples);
    std::map<int64_t, int64_t> counts;
    for (int64_t i = 0; i < dataset.size(); ++i) {
      const PretrainSample sample = dataset.sample(i);
      ASSERT_EQ(sample.tokens.size(), static_cast<size_t>(request.seq_length));
      for (size_t t = 0; t + 1 < sample.tokens.size(); ++t) ASSERT_EQ(sample.labels[t], sample.tokens[t + 1]);
      for (const int64_t token : sample.tokens) {
        ASSERT_GE(token, 1);
        ++counts[token];
      }
    }
    // Only the rest at the very end, shorter than a sample, is left out.
    int64_t used = 0;
    for (const auto& [token, count] : counts) {
      EXPECT_LE(count, plan.epochs);
      used += count;
    }
    EXPECT_EQ(used, plan.samples * request.seq_length);
    EXPECT_LE(plan.epochs * source->tokens() - used, request.seq_length);
  }
}

TEST(GptDataset, OffsetsBeyondInt32AreStoredInInt64) {
  const Numbered source({(int64_t{1} << 31) + 5});
  const GptIndices indices = build_gpt_indices(source, {.end = 1, .seq_length = int64_t{1} << 31});
  EXPECT_EQ(indices.samples.type(), IndexType::kInt64);
  EXPECT_EQ(indices.samples[3], int64_t{1} << 31);
}

// The process that builds the indices says how far it is; the others wait in silence.
TEST(GptDataset, BuildingIndicesShowsProgress) {
  const Numbered source({7, 5});
  const GptIndexRequest request{.end = 2, .samples = 100, .seq_length = 1};
  const auto said = [&](bool shows_progress) {
    ::setenv("MEGALITH_PROGRESS_MS", "0", 1);
    ::testing::internal::CaptureStderr();
    build_gpt_indices(source, request, shows_progress);
    ::unsetenv("MEGALITH_PROGRESS_MS");
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(said(true).find("indexing numbered: "), std::string::npos);
  EXPECT_EQ(said(false), "");
}

TEST(GptDataset, APartEndsWithEachEod) {
  const TempFolder temp;
  write_pair(temp / "set", TokenType::kUint16, {{{5, 0, 6, 7, 0, 0, 8, 9, 0}}});
  const GptDataset dataset(std::make_shared<IndexedDataset>(temp / "set"), {.end = 1, .seq_length = 8},
                           {.reset_position_ids = true, .reset_attention_mask = true});
  const PretrainSample sample = dataset.sample(0);
  EXPECT_EQ(sample.cumulative_lengths, (std::vector<int32_t>{0, 2, 5, 6, 8}));
  EXPECT_EQ(sample.position_ids, (std::vector<int64_t>{0, 1, 0, 1, 2, 0, 0, 1}));
}

TEST(GptDataset, ThreadsReadTheSame) {
  const auto source = std::make_shared<Numbered>(std::vector<int64_t>(100, 17));
  const GptDataset dataset(source, {.end = 100, .seq_length = 13}, {});
  std::vector<PretrainSample> samples;
  for (int64_t i = 0; i < dataset.size(); ++i) samples.push_back(dataset.sample(i));
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < wrong.size(); ++t)
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < dataset.size(); ++i) wrong[t] += dataset.sample(i) != samples[static_cast<size_t>(i)];
      });
  }
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(GptDataset, NoTokensAreRefused) {
  const Numbered source({0, 0, 3});
  expect_contains(message_of<DataError>([&] { plan_epochs(source, {.end = 2, .seq_length = 4}); }),
                  "numbered: its sequences 0 to 2 hold no token");
  EXPECT_THROW(plan_epochs(source, {.end = 4, .seq_length = 4}), InternalError);
  const GptDataset dataset(std::make_shared<Numbered>(source), {.end = 3, .seq_length = 2}, {});
  ASSERT_EQ(dataset.size(), 1);
  EXPECT_THROW(dataset.sample(1), InternalError);
  EXPECT_THROW(dataset.sample(-1), InternalError);
}

}  // namespace
}  // namespace megalith::data

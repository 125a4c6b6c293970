// Rows that are scored as a whole: their labels through the collator, and records that have none.
#include "megalith/data/scored_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "megalith/data/collator.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

using config::ProblemType;
using nlohmann::json;
using testing::expect_contains;
using testing::expect_error;

Sequence marked(std::vector<int32_t> ids, int32_t label) {
  Sequence row;
  row.ids = std::move(ids);
  mark_scored(row, label, 0, "file:1");
  return row;
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

TEST(ScoredRows, TheLastTokenHasTheLabel) {
  const std::vector<Sample> samples{{marked({5, 6, 7}, 2), std::nullopt}, {marked({8}, 1), std::nullopt}};
  const MicroBatch batch = Collator({.pad_id = 9}).collate(samples);
  EXPECT_EQ(values(batch.ids), (std::vector<int64_t>{5, 6, 7, 8, 9, 9}));
  EXPECT_EQ(values(batch.labels), (std::vector<int64_t>{-100, -100, 2, 1, -100, -100}));
  EXPECT_EQ(batch.loss_tokens, batch.sequences);
}

// transformers takes the last token that is not padding, so that is the one with the label.
TEST(ScoredRows, PaddingAtTheEndIsLeftOut) {
  EXPECT_EQ(marked({5, 0, 6, 0, 0}, 1).ids, (std::vector<int32_t>{5, 0, 6, 6}));
  expect_error<DataError>([] { marked({0, 0}, 1); }, {"file:1", "no token is left"});
}

TEST(ScoredRows, LabelsOfRecords) {
  const LabelForm classes{ProblemType::kSingleLabel, 3}, number{ProblemType::kRegression, 1},
      several{ProblemType::kMultiLabel, 4};
  const auto label = [](const json& value, const LabelForm& form) {
    return label_in({{"label", value}}, "label", form, "file:7");
  };
  EXPECT_EQ(label(2, classes), 2);
  EXPECT_EQ(label(true, classes), 1);
  EXPECT_EQ(label("2", classes), 2) << "values of CSV files are text";
  EXPECT_EQ(std::bit_cast<float>(label(-0.5, number)), -0.5F);
  EXPECT_EQ(label({1, 0, 0, 1}, several), 9);
  EXPECT_EQ(label({0, 0, 0, 0}, several), 0);
  // The bits of no finite number are those of an ignored label.
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(kIgnoredLabel)));

  const auto refuses = [&](const json& value, const LabelForm& form, const std::string& part) {
    expect_error<DataError>([&] { label(value, form); }, {"file:7", part});
  };
  refuses(3, classes, "num_labels is 3: labels are whole numbers from 0 to 2");
  refuses(-1, classes, "whole numbers from 0 to 2");
  refuses(1.5, classes, "whole numbers from 0 to 2");
  refuses("spam", classes, "a label is a number");
  refuses({1, 0}, classes, "a list of 2 numbers");
  refuses({1, 0}, several, "a list of 4 numbers");
  refuses({1, 0, 2, 0}, several, "0 or 1");
  refuses(1e300, number, "not a finite number");
  refuses(nullptr, classes, "\"label\" is missing");
  expect_error<DataError>([&] { label_in(json::object(), "label", classes, "file:7"); }, {"stage cls needs a label"});
}

TEST(ScoredRows, Margins) {
  EXPECT_EQ(margin_in({{"gap", 0.25}}, "gap", "file:7"), 0.25F);
  EXPECT_EQ(margin_in({{"gap", "0.5"}}, "gap", "file:7"), 0.5F);
  EXPECT_EQ(margin_in(json::object(), "gap", "file:7"), 0);
  EXPECT_EQ(margin_in({{"gap", 0.25}}, "", "file:7"), 0);
  expect_error<DataError>([] { margin_in({{"gap", "wide"}}, "gap", "file:7"); }, {"file:7", "a margin is a number"});
}

}  // namespace
}  // namespace megalith::data

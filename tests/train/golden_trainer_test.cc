// Steps of AdamW on the golden models through the trainer: losses and gradient norms of Hugging Face's library.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/train/golden_steps.h"

namespace megalith::testing {
namespace {

class GoldenHfTrainer : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenHfTrainer, losses_and_norms) {
  if (!model_type_supported(golden_model_type(GetParam())))
    GTEST_SKIP() << golden_model_type(GetParam()) << " is not supported";
  const GoldenModel golden = read_golden_model(GetParam());
  golden_member(golden.json, "train");
  expect_golden_steps(golden.folder, golden.input_ids, golden.labels, golden.json.at("train"), {});
  TrainerCase spread{.name = "tp dp, distributed optimizer", .tp = 2, .dp = 2};
  spread.args.parallel.sequence_parallel = true;
  spread.args.optimizer.use_distributed_optimizer = true;
  if (golden.input_ids.size(0) % 2 != 0 || !splits_over_two(golden.folder))
    leave_out(spread.name, "its sizes are odd");
  else
    expect_golden_steps(golden.folder, golden.input_ids, golden.labels, golden.json.at("train"), spread);
  TrainerCase stages{.name = "pp", .pp = 2};
  if (model::read_model_config(golden.folder).num_layers < 2) return leave_out(stages.name, "it has one layer");
  stages.args.batch.gradient_accumulation_steps = static_cast<int>(golden.input_ids.size(0));
  expect_golden_steps(golden.folder, golden.input_ids, golden.labels, golden.json.at("train"), stages);
}

INSTANTIATE_TEST_SUITE_P(hf, GoldenHfTrainer, ::testing::ValuesIn(golden_or_none(golden_model_names())),
                         [](const auto& test) { return golden_test_name(test); });

}  // namespace
}  // namespace megalith::testing

// Steps of AdamW on the golden models through the trainer: losses and gradient norms of Hugging Face's library.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/close.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

std::vector<data::Sequence> rows_of(const GoldenModel& golden) {
  std::vector<data::Sequence> rows;
  const at::Tensor ids = golden.input_ids.to(at::kInt).contiguous(), labels = golden.labels.to(at::kInt).contiguous();
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int32_t* id = ids.const_data_ptr<int32_t>() + row * ids.size(1);
    const int32_t* label = labels.const_data_ptr<int32_t>() + row * ids.size(1);
    rows.push_back({.ids = {id, id + ids.size(1)}, .labels = {label, label + ids.size(1)}});
  }
  return rows;
}

void expect_golden(const GoldenModel& golden, TrainerCase how) {
  SCOPED_TRACE(how.name);
  const auto& expected = golden.json.at("train");
  const std::vector<data::Sequence> rows = rows_of(golden);
  how.args.run.max_steps = expected.at("steps");
  how.args.batch.micro_batch_size = static_cast<int>(rows.size()) / how.dp / how.args.batch.gradient_accumulation_steps;
  how.args.optimizer.learning_rate = expected.at("lr");
  how.args.optimizer.weight_decay = expected.at("weight_decay");
  how.args.optimizer.adam_beta1 = expected.at("betas").at(0);
  how.args.optimizer.adam_beta2 = expected.at("betas").at(1);
  how.args.optimizer.adam_epsilon = expected.at("eps");
  how.args.optimizer.max_grad_norm = expected.at("clip");
  const RunLog run = run_training(golden.folder, how, rows, rows);
  std::vector<double> losses = run.numbers("loss");
  losses.push_back(*run.evaluation.find("eval_loss"));
  const std::vector<double> norms = run.numbers("grad_norm");
  ASSERT_EQ(losses.size(), expected.at("losses").size());
  ASSERT_EQ(norms.size(), expected.at("grad_norms").size());
  for (size_t i = 0; i < losses.size(); ++i)
    expect_close(losses[i], expected.at("losses")[i], fmt::format("loss {}", i), 1e-4);
  for (size_t i = 0; i < norms.size(); ++i)
    expect_close(norms[i], expected.at("grad_norms")[i], fmt::format("gradient norm {}", i), 1e-4);
}

class GoldenHfTrainer : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenHfTrainer, losses_and_norms) {
  if (!model_type_supported(golden_model_type(GetParam())))
    GTEST_SKIP() << golden_model_type(GetParam()) << " is not supported";
  const GoldenModel golden = read_golden_model(GetParam());
  expect_golden(golden, {});
  TrainerCase spread{.name = "tp dp, distributed optimizer", .tp = 2, .dp = 2};
  spread.args.parallel.sequence_parallel = true;
  spread.args.optimizer.use_distributed_optimizer = true;
  expect_golden(golden, spread);
  TrainerCase stages{.name = "pp", .pp = 2};
  stages.args.batch.gradient_accumulation_steps = static_cast<int>(golden.input_ids.size(0));
  expect_golden(golden, stages);
}

INSTANTIATE_TEST_SUITE_P(hf, GoldenHfTrainer, ::testing::ValuesIn(golden_model_names()),
                         [](const auto& test) { return golden_test_name(test); });

}  // namespace
}  // namespace megalith::testing

#include "tests/train/golden_steps.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/close.h"

namespace megalith::testing {
namespace {

std::vector<data::Sequence> rows_of(const at::Tensor& all_ids, const at::Tensor& all_labels) {
  std::vector<data::Sequence> rows;
  const at::Tensor ids = all_ids.to(at::kInt).contiguous(), labels = all_labels.to(at::kInt).contiguous();
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int32_t* id = ids.const_data_ptr<int32_t>() + row * ids.size(1);
    const int32_t* label = labels.const_data_ptr<int32_t>() + row * ids.size(1);
    rows.push_back({.ids = {id, id + ids.size(1)}, .labels = {label, label + ids.size(1)}});
  }
  return rows;
}

}  // namespace

void expect_golden_steps(const std::filesystem::path& model, const at::Tensor& ids, const at::Tensor& labels,
                         const nlohmann::json& expected, TrainerCase how) {
  SCOPED_TRACE(how.name);
  const std::vector<data::Sequence> rows = rows_of(ids, labels);
  how.args.run.max_steps = expected.at("steps");
  how.args.batch.micro_batch_size = static_cast<int>(rows.size()) / how.dp / how.args.batch.gradient_accumulation_steps;
  how.args.optimizer.learning_rate = expected.at("lr");
  how.args.optimizer.weight_decay = expected.at("weight_decay");
  how.args.optimizer.adam_beta1 = expected.at("betas").at(0);
  how.args.optimizer.adam_beta2 = expected.at("betas").at(1);
  how.args.optimizer.adam_epsilon = expected.at("eps");
  how.args.optimizer.max_grad_norm = expected.at("clip");
  const RunLog run = run_training(model, how, rows, rows);
  expect_golden_log(run, expected);
}

void expect_golden_log(const RunLog& run, const nlohmann::json& expected) {
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

}  // namespace megalith::testing

// Five steps of AdamW on the golden models: losses and gradient norms of Hugging Face's library, in several layouts.
#include <gtest/gtest.h>

#include "tests/model/model_support.h"
#include "tests/optim/train_case.h"
#include "tests/support/close.h"

namespace megalith::testing {
namespace {

class GoldenHfTrain : public ::testing::TestWithParam<std::string> {};

void expect_golden(const GoldenModel& golden, const TrainCase& how) {
  SCOPED_TRACE(how.name());
  const auto& expected = golden.json.at("train");
  TrainCase run = how;
  run.steps = expected.at("steps");
  run.lr = expected.at("lr");
  run.weight_decay = expected.at("weight_decay");
  run.optimizer.rule = std::make_shared<optim::AdamW>(ops::AdamSettings{
      .beta1 = expected.at("betas").at(0), .beta2 = expected.at("betas").at(1), .epsilon = expected.at("eps")});
  run.optimizer.clip_grad = expected.at("clip");
  const TrainResult result = train(golden.folder, {golden.input_ids, golden.labels}, run);
  ASSERT_EQ(result.losses.size(), expected.at("losses").size());
  for (size_t i = 0; i < result.losses.size(); ++i)
    expect_close(result.losses[i], expected.at("losses")[i], fmt::format("loss {}", i), 1e-4);
  for (size_t i = 0; i < result.grad_norms.size(); ++i)
    expect_close(result.grad_norms[i], expected.at("grad_norms")[i], fmt::format("gradient norm {}", i), 1e-4);
}

TEST_P(GoldenHfTrain, losses_and_norms) {
  if (!model_type_supported(golden_model_type(GetParam())))
    GTEST_SKIP() << golden_model_type(GetParam()) << " is not supported";
  const GoldenModel golden = read_golden_model(GetParam());
  golden_member(golden.json, "train");
  expect_golden(golden, {});
  const std::string uneven = fmt::format("{} rows for dp 2", golden.input_ids.size(0));
  if (golden.input_ids.size(0) % 2 != 0) return leave_out("dp 2", uneven);
  TrainCase sharded{.dp = 2,
                    .ddp = {.use_distributed_optimizer = true,
                            .overlap_grad_reduce = true,
                            .per_token_loss = true,
                            .bucket_size = optim::BucketSize::elements(4000)}};
  expect_golden(golden, sharded);
  if (!splits_over_two(golden.folder)) return leave_out("tp 2", "its sizes are odd");
  sharded.tp = 2;
  sharded.sequence_parallel = true;
  sharded.overlap_param_gather = true;
  expect_golden(golden, sharded);
}

INSTANTIATE_TEST_SUITE_P(hf, GoldenHfTrain, ::testing::ValuesIn(golden_or_none(golden_model_names())),
                         [](const auto& test) { return golden_test_name(test); });

}  // namespace
}  // namespace megalith::testing

// Every way to spread the optimizer over data-parallel ranks gives the same training run.
#include <gtest/gtest.h>

#include "megalith/optim/rules/sgd.h"
#include "tests/model/model_support.h"
#include "tests/optim/lion.h"
#include "tests/optim/train_case.h"
#include "tests/support/close.h"

namespace megalith::testing {
namespace {

void expect_same_bits(const TrainResult& actual, const TrainResult& expected, const std::string& name) {
  SCOPED_TRACE(name);
  EXPECT_EQ(actual.losses, expected.losses);
  EXPECT_EQ(actual.grad_norms, expected.grad_norms);
  for (const auto& [tensor, value] : expected.weights) expect_identical(actual.weights.at(tensor), value, tensor);
}

// Plain data parallelism, and everything else that may be switched on at the same number of ranks.
std::vector<TrainCase> variants(TrainCase plain) {
  std::vector<TrainCase> all;
  const auto add = [&](const std::function<void(TrainCase&)>& change) {
    all.push_back(plain);
    change(all.back());
  };
  add([](TrainCase& c) { c.ddp.overlap_grad_reduce = true; });
  add([](TrainCase& c) { c.ddp.bucket_size = optim::BucketSize::elements(5000); });
  add([](TrainCase& c) { c.ddp.overlap_grad_reduce = true, c.ddp.bucket_size = optim::BucketSize::count(7); });
  add([](TrainCase& c) { c.ddp.use_distributed_optimizer = true; });
  add([](TrainCase& c) { c.ddp.use_distributed_optimizer = true, c.overlap_param_gather = true; });
  add([](TrainCase& c) {
    c.ddp.use_distributed_optimizer = true, c.ddp.overlap_grad_reduce = true,
    c.ddp.bucket_size = optim::BucketSize::elements(3000);
    c.overlap_param_gather = true;
  });
  add([](TrainCase& c) { c.optimizer.offload_fraction = 1; });
  add([](TrainCase& c) { c.ddp.use_distributed_optimizer = true, c.optimizer.offload_fraction = 0.37; });
  return all;
}

class OptimizerLayouts : public ::testing::TestWithParam<TrainCase> {};

TEST_P(OptimizerLayouts, GiveTheSameBitsAtTheSameSize) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  TrainCase plain = GetParam();
  plain.steps = 3;
  const TrainResult expected = train(folder, batch, plain);
  for (const TrainCase& variant : variants(plain))
    expect_same_bits(train(folder, batch, variant), expected, variant.name());
}

std::string layout_name(const ::testing::TestParamInfo<TrainCase>& test) {
  return fmt::format("tp{}dp{}{}", test.param.tp, test.param.dp,
                     test.param.options.dtype == at::kBFloat16 ? "bf16" : "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, OptimizerLayouts,
                         ::testing::Values(TrainCase{.dp = 1}, TrainCase{.dp = 2, .micro_batches = 2},
                                           TrainCase{.dp = 4}, TrainCase{.tp = 2, .dp = 2, .sequence_parallel = true},
                                           TrainCase{.dp = 2, .options = {.dtype = at::kBFloat16}}),
                         layout_name);

INSTANTIATE_TEST_SUITE_P(
    OfAnOwnRule, OptimizerLayouts,
    ::testing::Values(TrainCase{.dp = 1, .optimizer = {.rule = lion()}},
                      TrainCase{.dp = 4, .optimizer = {.rule = lion()}},
                      TrainCase{.dp = 2, .options = {.dtype = at::kBFloat16}, .optimizer = {.rule = lion()}}),
    layout_name);

// State in fewer bits: shards, buckets and offload cut no scale.
INSTANTIATE_TEST_SUITE_P(
    OfStateFormats, OptimizerLayouts,
    ::testing::Values(
        TrainCase{.dp = 2,
                  .options = {.dtype = at::kBFloat16},
                  .optimizer = {.formats = {.remainders = true,
                                            .states = {{"exp_avg", at::kFloat8_e4m3fn}, {"exp_avg_sq", at::kHalf}}}}},
        TrainCase{
            .dp = 4,
            .options = {.dtype = at::kBFloat16},
            .optimizer = {.formats = {.main = at::kHalf,
                                      .states = {{"exp_avg", at::kBFloat16}, {"exp_avg_sq", at::kFloat8_e4m3fn}}}}},
        TrainCase{.dp = 2,
                  .optimizer = {.formats = {.states = {{"exp_avg", at::kHalf}, {"exp_avg_sq", at::kBFloat16}}}}},
        TrainCase{.dp = 1,
                  .options = {.dtype = at::kBFloat16},
                  .optimizer = {.rule = lion(),
                                .formats = {.remainders = true, .states = {{"exp_avg", at::kFloat8_e4m3fn}}}}}),
    layout_name);

// The transport that processes use.
TEST(OptimizerOverGloo, GivesTheSameBits) {
  const auto folder = golden_folder("qwen2");
  const TrainBatch batch = random_batch(2, 16, 256);
  TrainCase plain{.dp = 2, .steps = 2, .gloo = true};
  const TrainResult expected = train(folder, batch, plain);
  plain.ddp.use_distributed_optimizer = plain.ddp.overlap_grad_reduce = plain.overlap_param_gather = true;
  plain.ddp.bucket_size = optim::BucketSize::elements(5000);
  expect_same_bits(train(folder, batch, plain), expected, plain.name());
}

TEST(OptimizerInstances, AreCopiesOfTheSameState) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  TrainCase how{.dp = 4, .steps = 3};
  how.ddp.use_distributed_optimizer = true;
  const TrainResult expected = train(folder, batch, how);
  how.instances = 2;
  const TrainResult actual = train(folder, batch, how);
  for (size_t i = 0; i < actual.losses.size(); ++i) expect_close(actual.losses[i], expected.losses[i], "loss");
  for (const auto& [name, value] : expected.weights) expect_close(actual.weights.at(name), value, name, 1e-4);
  how.ddp.bucket_size = optim::BucketSize::elements(5000);
  how.ddp.overlap_grad_reduce = how.overlap_param_gather = true;
  for (const bool gloo : {false, true}) {
    how.gloo = gloo;
    const TrainResult overlapped = train(folder, batch, how);
    for (const auto& [name, value] : expected.weights) expect_close(overlapped.weights.at(name), value, name, 1e-4);
  }
}

void expect_same_losses(TrainCase how, double tolerance) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  how.steps = 20;
  const TrainResult alone = train(folder, batch, how);
  ASSERT_LT(alone.losses.back(), 0.8 * alone.losses.front());  // it learns
  how.ddp.use_distributed_optimizer = true;
  for (const auto& [tp, dp] : {std::pair{1, 2}, {1, 4}, {2, 1}, {2, 2}}) {
    how.tp = tp, how.dp = dp;
    how.sequence_parallel = tp > 1 && dp > 1;
    SCOPED_TRACE(how.name());
    const TrainResult spread = train(folder, batch, how);
    for (size_t i = 0; i < alone.losses.size(); ++i)
      expect_close(spread.losses[i], alone.losses[i], fmt::format("loss {}", i), tolerance);
  }
}

TEST(OptimizerSizes, GiveTheSameLossesInFp32) {
  TrainCase how{.lr = 2e-4};
  expect_same_losses(how, 1e-5);
}
TEST(OptimizerSizes, GiveAboutTheSameLossesInBf16) {
  TrainCase how{.lr = 2e-4, .options = {.dtype = at::kBFloat16}};
  expect_same_losses(how, 2e-3);
}

// A sign flips where a gradient is rounding alone, and the step is of full size: losses come as close as under AdamW in
// a longer run.
TEST(OptimizerSizes, GiveTheSameLossesWithAnOwnRule) {
  TrainCase how{.lr = 1e-4, .optimizer = {.rule = lion()}};
  expect_same_losses(how, 1e-4);
}

// Parameters are compared under SGD: Adam divides noise by noise.
TEST(OptimizerSizes, GiveTheSameParametersUnderSgd) {
  const auto folder = golden_folder("qwen3");
  const TrainBatch batch = random_batch(4, 16, 256);
  TrainCase how{.micro_batches = 2, .steps = 4, .lr = 1e-2};
  how.optimizer.rule = std::make_shared<optim::Sgd>();
  const TrainResult alone = train(folder, batch, how);
  how.tp = 2, how.dp = 2;
  how.ddp.use_distributed_optimizer = how.ddp.overlap_grad_reduce = true;
  const TrainResult spread = train(folder, batch, how);
  for (const auto& [name, value] : alone.weights) expect_close(spread.weights.at(name), value, name);
}

TEST(OptimizerRecompute, ReportsOfARecomputedModelCompleteTheirBuckets) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  TrainCase how{.dp = 2, .micro_batches = 2, .steps = 3};
  const TrainResult expected = train(folder, batch, how);
  how.options.recompute.layers = model::RecomputePlan::Layers::kUniform;
  how.options.recompute.num_layers = 1;
  how.ddp.overlap_grad_reduce = true;
  how.ddp.bucket_size = optim::BucketSize::elements(3000);
  expect_same_bits(train(folder, batch, how), expected, how.name());
}

}  // namespace
}  // namespace megalith::testing

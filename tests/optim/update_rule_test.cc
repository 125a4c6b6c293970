// Rules on their own, and what the optimizer does around one that is not fused.
#include "megalith/optim/rules/update_rule.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/optim/rules/adamw.h"
#include "megalith/optim/rules/lion.h"
#include "megalith/optim/rules/sgd.h"
#include "tests/model/model_support.h"
#include "tests/optim/lion.h"
#include "tests/optim/train_case.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

// Remembers what it was given, and moves nothing.
class Witness : public optim::UpdateRule {
 public:
  explicit Witness(std::vector<std::string> states = {}) : states_(std::move(states)) {}
  std::string name() const override { return "witness"; }
  std::vector<std::string> state_names() const override { return states_; }

  mutable std::vector<std::pair<optim::FlatElements, ops::UpdateScalars>> seen;

 private:
  void update(const optim::FlatElements& x, const ops::UpdateScalars& scalars) const override {
    seen.emplace_back(x, scalars);
  }
  std::vector<std::string> states_;
};

TEST(UpdateRule, NamesAndBytesAreThoseOfCheckpoints) {
  const optim::AdamW adam;
  EXPECT_EQ(adam.name(), "adam");
  EXPECT_EQ(adam.state_names(), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(adam.state_bytes(), 8);
  const optim::Sgd sgd;
  EXPECT_EQ(sgd.name(), "sgd");
  EXPECT_EQ(sgd.state_names(), std::vector<std::string>{"exp_avg"});
  EXPECT_EQ(sgd.state_bytes(), 4);
  EXPECT_EQ(Witness().state_bytes(), 0);
}

// Against the formula of the paper, and another way to write it (lion.h).
TEST(Lion, MovesByTheSignOfItsMomentum) {
  const optim::Lion rule({.beta1 = 0.9, .beta2 = 0.99});
  EXPECT_EQ(rule.name(), "lion");
  const auto block = [] {
    return optim::FlatElements{.main = at::arange(5, at::kFloat) - 2, .states = {at::zeros({5})}};
  };
  optim::FlatElements actual = block(), other = block();
  at::Tensor p = actual.main.to(at::kDouble), m = at::zeros({5}, at::kDouble);
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor g = (at::arange(5, at::kDouble) * static_cast<double>(step)).sin();
    const ops::UpdateRun all{0, 5, {.lr = 0.1, .weight_decay = 0.2, .step = step}};
    actual.grad = g.to(at::kFloat), other.grad = g.to(at::kFloat);
    rule.update_runs(actual, std::span(&all, 1));
    lion(0.9, 0.99)->update_runs(other, std::span(&all, 1));
    p = p - 0.1 * ((0.9 * m + 0.1 * g).sign() + 0.2 * p);
    m = 0.99 * m + 0.01 * g;
    expect_close(actual.main, p, "parameters");
    expect_close(actual.states[0], m, "momentum");
    expect_close(other.main, actual.main, "parameters, written otherwise");
  }
  EXPECT_EQ(optim::Lion({.beta1 = 1, .beta2 = -1}).problems().size(), 2U);
}

TEST(UpdateRule, ThatIsNotFusedGetsFinalGradientsAndIsCast) {
  const at::Tensor grads = at::arange(1, 7, at::kBFloat16), params = at::zeros({6}, at::kBFloat16);
  const optim::FlatElements block{
      .main = at::arange(6, at::kFloat) + 0.001, .grad = grads, .states = {at::zeros({6})}, .param = params};
  const Witness witness({"exp_avg"});
  const std::vector<ops::UpdateRun> runs{{0, 2, {.lr = 1, .grad_scale = 0.5, .step = 3}},
                                         {3, 6, {.lr = 2, .grad_scale = 0.5, .step = 3}}};
  witness.update_runs(block, runs);
  ASSERT_EQ(witness.seen.size(), 2U);
  const auto& [elements, scalars] = witness.seen[1];
  EXPECT_EQ(scalars.lr, 2);
  EXPECT_EQ(scalars.step, 3);
  expect_identical(elements.grad, at::tensor({2.F, 2.5F, 3.F}), "gradient");
  EXPECT_FALSE(elements.param.defined());
  EXPECT_EQ(elements.main.data_ptr(), block.main.narrow(0, 3, 3).data_ptr());
  EXPECT_EQ(elements.states.at(0).data_ptr(), block.states[0].narrow(0, 3, 3).data_ptr());
  at::Tensor cast = block.main.to(at::kBFloat16);
  cast[2] = 0;  // in no run
  expect_identical(params, cast, "model parameters");
  elements.grad.zero_();
  expect_identical(grads, at::arange(1, 7, at::kBFloat16), "gradients of the buffer");
}

TEST(UpdateRule, ThatIsNotFusedGetsLongRunsInPieces) {
  const int64_t n = (int64_t{1} << 22) + 5;
  const optim::FlatElements block{.main = at::ones({n}), .grad = at::ones({n}), .states = {at::zeros({n})}};
  const ops::UpdateRun all{0, n, {.lr = 0.25, .weight_decay = 0.5, .step = 1}};
  lion(0.5, 0.5)->update_runs(block, std::span(&all, 1));
  EXPECT_TRUE(block.main.eq(1 - 0.125 - 0.25).all().item<bool>());
  EXPECT_TRUE(block.states[0].eq(0.5).all().item<bool>());
  const Witness witness;
  witness.update_runs({.main = block.main, .grad = block.grad}, std::span(&all, 1));
  ASSERT_EQ(witness.seen.size(), 2U);
  EXPECT_EQ(witness.seen[1].first.main.numel(), 5);
}

std::string problem_of(std::shared_ptr<const optim::UpdateRule> rule) {
  return error_of<ConfigError>([&] { optim::OptimizerSettings{.rule = std::move(rule)}.validate(); });
}

TEST(UpdateRule, OfWrongSettingsIsRefused) {
  const std::string both = problem_of(lion(1.5, -1));
  expect_contains(both, "lion_beta1 is 1.5; it must be at least 0 and below 1");
  expect_contains(both, "lion_beta2 is -1");
  expect_contains(problem_of(nullptr), "no update rule");
  expect_contains(problem_of(std::make_shared<Witness>(std::vector<std::string>{"a.b"})),
                  "the update rule witness names a state \"a.b\"; use letters, digits and underscores");
  expect_contains(problem_of(std::make_shared<Witness>(std::vector<std::string>{""})), "names a state \"\"");
  expect_contains(problem_of(std::make_shared<Witness>(std::vector<std::string>{"main"})), "names a state \"main\"");
  expect_contains(problem_of(std::make_shared<Witness>(std::vector<std::string>{"a", "b", "a"})),
                  "names a state twice: a, b, a");
  const TrainCase how{.optimizer = {.rule = lion(2)}};
  run_ranks(1, [&](const Rank& rank) {
    expect_error<ConfigError>([&] { TrainingRank(rank, golden_folder("llama"), how); }, {"lion_beta1 is 2"});
  });
}

// The gate of a begun step is for kernels that know it.
TEST(UpdateRule, ThatIsNotFusedBeginsNoStep) {
  const TrainCase how{.optimizer = {.rule = lion()}};
  run_training_ranks(golden_folder("llama"), how, [&](const Rank&, TrainingRank& t) {
    t.accumulate(random_batch(2, 16, 256));
    EXPECT_FALSE(t.optimizer().begins_steps());
    EXPECT_TRUE(t.step().updated);
  });
}

TEST(UpdateRule, LearnsWithAndWithoutState) {
  const TrainBatch batch = random_batch(2, 16, 256);
  class SignDescent : public optim::UpdateRule {
    std::string name() const override { return "sign_descent"; }
    std::vector<std::string> state_names() const override { return {}; }
    void update(const optim::FlatElements& x, const ops::UpdateScalars& scalars) const override {
      x.main.sub_(x.grad.sign(), scalars.lr);
    }
  };
  for (const std::shared_ptr<const optim::UpdateRule>& rule :
       {lion(), std::shared_ptr<const optim::UpdateRule>(std::make_shared<SignDescent>())}) {
    const TrainCase how{.dp = 2, .steps = 6, .lr = 2e-4, .optimizer = {.rule = rule}};
    const TrainResult result = train(golden_folder("llama"), batch, how);
    EXPECT_LT(result.losses.back(), 0.97 * result.losses.front()) << rule->name();
  }
}

// fp32: a shard of one state; bf16: of it and the fp32 parameters.
TEST(UpdateRule, TakesTheBytesItSays) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    TrainCase how{.dp = 2, .options = {.dtype = dtype}, .optimizer = {.rule = lion()}};
    how.ddp.use_distributed_optimizer = true;
    run_training_ranks(golden_folder("llama"), how, [&](const Rank&, TrainingRank& t) {
      const int64_t elements = t.ddp().buffers()[0]->layout().numel();
      EXPECT_EQ(t.optimizer().state_bytes(false), elements / 2 * (4 + (dtype == at::kFloat ? 0 : 4)));
      for (const auto& state : t.optimizer().sharded_state())
        EXPECT_TRUE(state.name.starts_with("optimizer.exp_avg.") || state.name.starts_with("optimizer.main."))
            << state.name;
    });
  }
}

}  // namespace
}  // namespace megalith::testing

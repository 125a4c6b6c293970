// One optimizer: groups, clipping, skipped steps, memory, and state that comes back in another layout.
#include "megalith/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <cstring>

#include "megalith/optim/optimizer_settings.h"
#include "megalith/optim/param_groups.h"
#include "megalith/optim/rules/sgd.h"
#include "megalith/parallel/sharded_tensor.h"
#include "tests/model/model_support.h"
#include "tests/optim/lion.h"
#include "tests/optim/memory_source.h"
#include "tests/optim/train_case.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/memory_meter.h"

namespace megalith::testing {
namespace {

using optim::Optimizer;
using optim::OptimizerSettings;

TrainCase sharded(int tp, int dp) {
  TrainCase how{.tp = tp, .dp = dp};
  how.ddp.use_distributed_optimizer = true;
  how.ddp.overlap_grad_reduce = true;
  how.ddp.bucket_size = optim::BucketSize::elements(3000);
  return how;
}

struct StateCase {
  at::ScalarType dtype = at::kFloat;
  std::shared_ptr<const optim::UpdateRule> rule = std::make_shared<optim::AdamW>(ops::AdamSettings{.beta2 = 0.95});
  double lr = 1e-3;
  optim::StateFormats formats{};
  double tolerance = 2e-3;  // for losses in another layout, where state has fewer bits than fp32
};
// Signs of rounding errors take steps of full size: Lion's rate is a tenth of Adam's.
StateCase lion_state(at::ScalarType dtype) { return {.dtype = dtype, .rule = lion(), .lr = 1e-4}; }

class StateLayouts : public ::testing::TestWithParam<StateCase> {};

// Two steps in one layout, then two more in another from the saved state and weights.
TEST_P(StateLayouts, StateSavedInOneIsReadInAnother) {
  const auto folder = golden_folder("qwen2");  // biases, fused q, k, v, tied embedding
  const TrainBatch batch = random_batch(4, 16, 256);
  const bool fp32 = GetParam().dtype == at::kFloat && GetParam().formats.states.empty();
  std::vector<TrainCase> layouts{TrainCase{}, sharded(2, 2), sharded(1, 4)};
  for (TrainCase& layout : layouts) {
    layout.options.dtype = GetParam().dtype;
    layout.optimizer.rule = GetParam().rule;
    layout.optimizer.formats = GetParam().formats;
    layout.lr = GetParam().lr;
  }
  for (const TrainCase& from : layouts) {
    MemorySource saved;
    NamedTensors weights = whole_tensors(model::read_model_config(folder));
    std::string progress;
    std::vector<double> expected;
    run_training_ranks(folder, from, [&](const Rank& rank, TrainingRank& t) {
      for (int i = 0; i < 2; ++i) t.accumulate(batch), t.step();
      saved.save(t.optimizer().sharded_state());
      fill_in(weights, t.models(), [](const nn::Parameter& p) { return p.value.detach(); });
      if (rank.rank == 0) progress = t.optimizer().progress_json();
      std::vector<double> losses;
      for (int i = 0; i < 2; ++i) losses.push_back(t.accumulate(batch)), t.step();
      if (rank.rank == 0) expected = losses;
    });
    for (const auto& [name, tensor] : saved.whole())
      EXPECT_FALSE(tensor.isnan().any().item<bool>()) << name << " has a part that nobody wrote";
    for (const TrainCase& to : layouts) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      run_training_ranks(folder, to, [&](const Rank& rank, TrainingRank& t) {
        const hf::TensorMapping mapping(model::name_map(t.models().config()),
                                        model::global_tensors(t.models().config()));
        const at::NoGradGuard no_grad;
        for (nn::Parameter* p : t.models().parameters())
          for (const auto& part : p->sharded()) {
            auto place = mapping.place(part);
            at::Tensor source = weights.at(place.file->name);
            for (size_t d = 0; d < place.offset.size(); ++d)
              source =
                  source.narrow(static_cast<int64_t>(d), place.offset[d], place.data.size(static_cast<int64_t>(d)));
            place.data.copy_(source);
          }
        t.optimizer().load_state(saved, progress);
        EXPECT_EQ(t.optimizer().steps(), 2);
        const at::AutoGradMode with_grad(true);
        std::vector<double> losses;
        for (int i = 0; i < 2; ++i) losses.push_back(t.accumulate(batch)), t.step();
        if (rank.rank != 0) return;
        for (size_t i = 0; i < losses.size(); ++i) {
          if (from.name() == to.name())
            EXPECT_EQ(losses[i], expected[i]) << i;
          else
            expect_close(losses[i], expected[i], "loss", fp32 ? kClose : GetParam().tolerance);
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, StateLayouts,
                         ::testing::Values(StateCase{}, StateCase{.dtype = at::kBFloat16}, lion_state(at::kFloat),
                                           lion_state(at::kBFloat16)),
                         [](const auto& test) {
                           return fmt::format("{}_{}", test.param.rule->name(), c10::toString(test.param.dtype));
                         });

// Scales cover other elements where tp cuts rows elsewhere than at multiples of 64.
INSTANTIATE_TEST_SUITE_P(
    Formats, StateLayouts,
    ::testing::Values(
        StateCase{
            .dtype = at::kBFloat16,
            .formats = {.remainders = true, .states = {{"exp_avg", at::kBFloat16}, {"exp_avg_sq", at::kBFloat16}}}},
        StateCase{.dtype = at::kBFloat16,
                  .formats = {.main = at::kHalf, .states = {{"exp_avg", at::kHalf}, {"exp_avg_sq", at::kHalf}}}},
        StateCase{.dtype = at::kBFloat16,
                  .formats = {.remainders = true,
                              .states = {{"exp_avg", at::kFloat8_e4m3fn}, {"exp_avg_sq", at::kFloat8_e4m3fn}}},
                  .tolerance = 5e-3},
        StateCase{.formats = {.states = {{"exp_avg", at::kFloat8_e4m3fn}, {"exp_avg_sq", at::kHalf}}},
                  .tolerance = 5e-3}),
    [](const auto& test) { return fmt::format("case{}", test.index); });

TEST(OptimizerState, OfAnotherModelOrOptimizerIsRefusedByName) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(2, 16, 512);
  MemorySource saved;
  std::string progress;
  const auto message = [&](const TrainCase& how, const std::string& given) {
    std::string text;
    run_training_ranks(folder, how, [&](const Rank&, TrainingRank& t) {
      try {
        t.optimizer().load_state(saved, given);
      } catch (const Error& error) {
        text = error.what();
      }
      EXPECT_EQ(t.optimizer().steps(), text.empty() ? 1 : 0);
    });
    return text;
  };
  run_training_ranks(folder, {}, [&](const Rank&, TrainingRank& t) {
    t.accumulate(batch), t.step();
    saved.save(t.optimizer().sharded_state());
    progress = t.optimizer().progress_json();
  });
  EXPECT_EQ(message({}, progress), "");
  TrainCase sgd;
  sgd.optimizer.rule = std::make_shared<optim::Sgd>();
  expect_contains(message(sgd, progress), "\"adam\"; this run uses sgd");
  expect_contains(message({}, "{\"step\": -1}"), "\"step\"");
  expect_contains(message({}, "no json"), "memory");
  saved.whole()["optimizer.exp_avg.final_norm.weight"] = at::zeros({3});
  saved.whole().erase("optimizer.exp_avg_sq.layers.1.mlp.down.weight");
  const std::string text = message({}, progress);
  expect_contains(text, "optimizer.exp_avg.final_norm.weight is [3] there and [64] in this model");
  expect_contains(text, "optimizer.exp_avg_sq.layers.1.mlp.down.weight is missing");
}

// A skipped step changes nothing but the loss scale.
TEST(Optimizer, SkipsAStepWhoseGradientsOverflowed) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  TrainCase how = sharded(1, 2);
  how.ddp.check_for_nan = false;
  run_training_ranks(folder, how, [&](const Rank& rank, TrainingRank& t) {
    t.scaler() = optim::GradScaler::dynamic({.initial_scale = 1024, .hysteresis = 1});
    t.accumulate(batch);
    const auto clean = t.step();
    ASSERT_TRUE(clean.updated);
    EXPECT_EQ(t.scaler().scale(), 1024);
    std::vector<at::Tensor> before;
    for (const auto& part : t.optimizer().sharded_state()) before.push_back(part.local.clone());
    for (const nn::Parameter* p : t.models().parameters()) before.push_back(p->value.detach().clone());
    t.accumulate(batch);
    // In this rank's own shard of rank 1 alone: all must hear of it.
    if (rank.rank == 1) t.ddp().buffers()[0]->own(t.ddp().buffers()[0]->grads(), 0)[0].fill_(HUGE_VAL);
    const auto skipped = t.step();
    EXPECT_FALSE(skipped.updated);
    EXPECT_FALSE(skipped.grad_norm.has_value());
    EXPECT_EQ(t.scaler().scale(), 512);
    EXPECT_EQ(t.optimizer().steps(), 1);
    std::vector<at::Tensor> after;
    for (const auto& part : t.optimizer().sharded_state()) after.push_back(part.local);
    for (const nn::Parameter* p : t.models().parameters()) after.push_back(p->value.detach());
    for (size_t i = 0; i < before.size(); ++i) expect_identical(after[i], before[i], "state");
  });
}

// The terms of the norm, added up as a training step does together with its other numbers.
at::Tensor summed_terms(TrainingRank& t) {
  at::Tensor terms = t.optimizer().norm_terms();
  t.context().world().world().all_reduce(terms, comm::ReduceOp::kSum, "terms");
  return terms;
}

optim::GradStats stats_in(const at::Tensor& terms) {
  return optim::stats_of({terms.const_data_ptr<double>(), static_cast<size_t>(terms.numel())});
}

// An update that is begun before anybody has looked at the norm, in every layout.
TEST(Optimizer, APendingUpdateIsTheSameStep) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(2, 16, 256);
  const std::vector<std::shared_ptr<const optim::UpdateRule>> rules{std::make_shared<optim::AdamW>(),
                                                                    std::make_shared<optim::Sgd>()};
  const std::vector<TrainCase> layouts{{}, {.dp = 2}, {.tp = 2}, sharded(1, 2), sharded(2, 2)};
  for (const auto& rule : rules)
    for (const TrainCase& layout : layouts) {
      SCOPED_TRACE(rule->name() + ", " + layout.name());
      std::vector<double> norms[2], losses[2];
      for (const bool begins : {false, true}) {
        TrainCase how = layout;
        how.optimizer.rule = rule;
        how.optimizer.clip_grad = 0.5;
        run_training_ranks(folder, how, [&](const Rank& rank, TrainingRank& t) {
          std::vector<double> own_norms, own_losses;
          for (int i = 0; i < 3; ++i) {
            own_losses.push_back(t.accumulate(batch));
            if (begins) {
              EXPECT_TRUE(t.optimizer().begins_steps());
              const at::Tensor terms = summed_terms(t);
              t.optimizer().begin_step(t.scaler(), optim::squares_of(terms));
              EXPECT_EQ(t.optimizer().steps(), i) << "it does not count before it is ended";
              const auto result = t.optimizer().finish_step(t.scaler(), stats_in(terms), /*begun=*/true);
              own_norms.push_back(result.grad_norm.value());
            } else {
              own_norms.push_back(t.step().grad_norm.value());
            }
          }
          own_losses.push_back(t.loss(batch));
          EXPECT_EQ(t.optimizer().steps(), 3);
          if (rank.rank != 0) return;
          norms[begins] = own_norms;
          losses[begins] = own_losses;
        });
      }
      EXPECT_EQ(losses[0], losses[1]);
      EXPECT_EQ(norms[0], norms[1]);
      EXPECT_LT(losses[0].back(), losses[0].front());
    }
}

TEST(Optimizer, APendingUpdateOfNansChangesNothing) {
  // The last rank alone has it, in a part of the model that only it holds.
  for (const TrainCase& how : {TrainCase{}, TrainCase{.tp = 2}, sharded(1, 2)})
    run_training_ranks(golden_folder("llama"), how, [&](const Rank& rank, TrainingRank& t) {
      SCOPED_TRACE(how.name());
      const TrainBatch batch = random_batch(2, 16, 256);
      const double before = t.loss(batch);
      t.accumulate(batch);
      const optim::ParamBuffer& buffer = *t.ddp().buffers()[0];
      if (rank.rank + 1 == how.tp * how.dp) buffer.own(buffer.grads(), 0).fill_(NAN);
      const at::Tensor terms = summed_terms(t);
      t.optimizer().begin_step(t.scaler(), optim::squares_of(terms));
      EXPECT_EQ(t.loss(batch), before);
      const optim::StepResult result = t.optimizer().finish_step(t.scaler(), stats_in(terms), /*begun=*/true);
      EXPECT_FALSE(result.updated);
      EXPECT_EQ(t.optimizer().steps(), 0);
      for (const auto& state : t.optimizer().sharded_state()) {
        if (state.name.find("exp_avg") != std::string::npos) {
          EXPECT_TRUE(state.local.eq(0).all().item<bool>()) << state.name;
        }
      }
    });
}

TEST(Optimizer, ALossScaleThatIsAPowerOfTwoChangesNothing) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(2, 16, 512);
  std::vector<double> losses[2];
  for (const int scaled : {0, 1})
    run_training_ranks(folder, {}, [&](const Rank&, TrainingRank& t) {
      if (scaled) t.scaler() = optim::GradScaler::constant(4096);
      for (int i = 0; i < 3; ++i) losses[scaled].push_back(t.accumulate(batch)), t.step();
    });
  EXPECT_EQ(losses[1], losses[0]);
}

TEST(Optimizer, CountsZerosOnceInEveryLayout) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  std::vector<int64_t> counts;
  for (TrainCase how : {TrainCase{}, sharded(1, 2), sharded(2, 2)}) {
    how.optimizer.count_zeros = true;
    run_training_ranks(folder, how, [&](const Rank& rank, TrainingRank& t) {
      t.accumulate(batch);
      const auto result = t.step();
      if (rank.rank == 0) counts.push_back(result.num_zeros.value());
    });
  }
  EXPECT_GT(counts[0], 0);  // rows of tokens that the batch does not have
  EXPECT_EQ(counts[1], counts[0]);
  EXPECT_EQ(counts[2], counts[0]);
}

TEST(Optimizer, GroupsDecideAboutDecayAndRate) {
  const auto folder = golden_folder("qwen2");
  TrainCase how;
  how.optimizer.groups.decoupled_lr = true;
  how.optimizer.groups.multipliers = {{"layers.0.", 0.0}};
  how.optimizer.clip_grad = 0;
  run_training_ranks(folder, how, [&](const Rank&, TrainingRank& t) {
    // Gradients are zero: what moves, moves by decay alone.
    for (optim::ParamGroup& group : t.optimizer().groups()) {
      group.lr = group.decoupled_lr ? 0.5 : 0.1;
      group.weight_decay = 0.1;
    }
    std::map<std::string, at::Tensor> before;
    for (const nn::Parameter* p : t.models().parameters()) before[p->spec.name] = p->value.detach().clone();
    t.ddp().zero_grad();
    t.ddp().finish_grad_sync();
    t.step();
    for (const nn::Parameter* p : t.models().parameters()) {
      double factor = 1;
      if (p->value.dim() > 1) factor = p->spec.is_embedding_or_head ? 1 - 0.5 * 0.1 : 1 - 0.1 * 0.1;
      if (p->spec.name.find("layers.0.") != std::string::npos) factor = 1;
      expect_close(p->value.detach(), before.at(p->spec.name) * factor, p->spec.name, 1e-6);
    }
  });
}

TEST(Optimizer, RefusesSettingsAndRatesThatAreNotNumbers) {
  const auto problem = [](const OptimizerSettings& settings) -> std::string {
    try {
      settings.validate();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  const auto adam = [](const ops::AdamSettings& settings) -> OptimizerSettings {
    return {.rule = std::make_shared<optim::AdamW>(settings)};
  };
  expect_contains(problem(adam({.beta1 = 1})), "adam_beta1 is 1");
  expect_contains(problem(adam({.beta2 = -0.1})), "adam_beta2 is -0.1");
  expect_contains(problem(adam({.beta2 = std::nan("")})), "adam_beta2 is nan");
  expect_contains(problem(adam({.epsilon = 0})), "adam_epsilon is 0");
  expect_contains(problem({.rule = std::make_shared<optim::Sgd>(ops::SgdSettings{.momentum = 1})}),
                  "sgd_momentum is 1; it must be at least 0 and below 1");
  expect_contains(problem({.clip_grad = -1}), "max_grad_norm is -1");
  expect_contains(problem({.offload_fraction = 1.5}), "optimizer_offload_fraction is 1.5");
  EXPECT_EQ(problem({}), "");
  const auto folder = golden_folder("llama");
  for (const double lr : {std::nan(""), -1e-3, HUGE_VAL})
    run_training_ranks(folder, {}, [&](const Rank&, TrainingRank& t) {
      t.optimizer().groups()[0].lr = lr;
      try {
        t.step();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const ConfigError& error) {
        expect_contains(error.what(), "learning rate of the parameters with decay");
      }
    });
}

TEST(Optimizer, OverlapOfAGatherNeedsShards) {
  TrainCase how;
  how.overlap_param_gather = true;
  try {
    run_ranks(1, [&](const Rank& rank) { EXPECT_THROW(TrainingRank(rank, golden_folder("llama"), how), ConfigError); });
  } catch (const ConfigError&) {
  }
}

// Bytes per element against theory: 2 + 4 + 12/d for bf16, 4 + 4 + 8/d for fp32.
TEST(OptimizerMemory, IsWhatTheoryAllows) {
  for (const auto dtype : {at::kBFloat16, at::kFloat})
    for (const int dp : {1, 2, 4})
      for (const double offload : {0.0, 0.5}) {
        run_ranks(dp, [&](const Rank& rank) {
          const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = dp}));
          const MemoryMeter meter;
          nn::ParameterSet set(dtype, at::kCPU);
          const nn::ParameterScope root(set);
          std::vector<nn::Parameter*> all;
          for (int i = 0; i < 10; ++i) {
            all.push_back(&root.add({.name = fmt::format("w{}.weight", i)}, {160, 401}));
            all.push_back(&root.add({.name = fmt::format("w{}.bias", i)}, {401}));
          }
          const auto elements = static_cast<double>(set.numel());
          optim::DistributedDataParallel ddp(all, {.use_distributed_optimizer = true}, context);
          Optimizer optimizer({&ddp}, {.offload_fraction = offload}, context);
          const double width = dtype == at::kFloat ? 4 : 2;
          const double device = (dtype == at::kFloat ? 8.0 : 12.0) / dp * (1 - offload), host = 12.0 / dp * offload;
          const double expected = elements * (width + 4 + device + host);
          EXPECT_NEAR(static_cast<double>(meter.current()), expected, 0.02 * expected)
              << c10::toString(dtype) << ", dp " << dp << ", offload " << offload;
          EXPECT_NEAR(static_cast<double>(optimizer.state_bytes(false)), elements * device, 0.02 * elements * 12);
          EXPECT_NEAR(static_cast<double>(optimizer.state_bytes(true)), elements * host, 0.02 * elements * 12);
        });
      }
}

// The same numbers on a GPU, with state there, on the host, and half and half.
TEST(OptimizerOnCuda, OffloadChangesNothing) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU";
  const auto steps = [](at::Device device, double offload) {
    at::Tensor result;
    run_ranks(1, [&](const Rank& rank) {
      const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}), device);
      nn::ParameterSet set(at::kBFloat16, device);
      std::vector<nn::Parameter*> all;
      for (int i = 0; i < 3; ++i)
        all.push_back(&nn::ParameterScope(set).add({.name = fmt::format("w{}.weight", i)}, {1500, 700}));
      const at::NoGradGuard no_grad;
      for (nn::Parameter* p : all) p->value.copy_(at::arange(1500 * 700, at::kDouble).sin().view({1500, 700}));
      optim::DistributedDataParallel ddp(all, {}, context);
      Optimizer optimizer({&ddp}, {.offload_fraction = offload}, context);
      for (optim::ParamGroup& group : optimizer.groups()) group.lr = 1e-2, group.weight_decay = 0.1;
      auto scaler = optim::GradScaler::constant(1);
      for (int step = 0; step < 3; ++step) {
        for (nn::Parameter* p : all) p->grad.main_grad.copy_((p->value.to(at::kFloat) * 3 + step).cos());
        EXPECT_TRUE(optimizer.step(scaler).updated);
      }
      EXPECT_EQ(optimizer.state_bytes(true) > 0, offload > 0);
      result = ddp.buffers()[0]->params().to(at::kCPU, at::kFloat);
    });
    return result;
  };
  const at::Tensor expected = steps(at::kCPU, 0);
  for (const double offload : {0.0, 0.4, 1.0}) expect_close(steps(at::kCUDA, offload), expected, "parameters", 8e-3);
}

}  // namespace
}  // namespace megalith::testing

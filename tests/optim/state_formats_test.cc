// Optimizer state that is kept in fewer bits than fp32: the update, memory, and checkpoints between formats.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "megalith/optim/rules/sgd.h"
#include "tests/model/model_support.h"
#include "tests/optim/lion.h"
#include "tests/optim/memory_source.h"
#include "tests/optim/train_case.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/memory_meter.h"

namespace megalith::testing {
namespace {

using optim::StateFormats;

constexpr auto kFp8 = at::kFloat8_e4m3fn;

StateFormats moments(at::ScalarType first, at::ScalarType second, at::ScalarType main = at::kFloat) {
  return {.main = main, .remainders = true, .states = {{"exp_avg", first}, {"exp_avg_sq", second}}};
}

// Rounds `x` to a format and back, in plain ATen: TransformerEngine's rule for each block of 64.
at::Tensor rounded(const at::Tensor& x, at::ScalarType format) {
  if (format == at::kFloat || format == at::kBFloat16) return x.to(format).to(at::kFloat);
  const at::Tensor blocks = x.view({-1, 64});
  const at::Tensor amax = blocks.abs().amax(1, /*keepdim=*/true);
  at::Tensor scale;
  if (format == at::kHalf) {
    scale = at::exp2(at::ceil(at::log2(amax.to(at::kDouble)))).div(0x1p15).to(at::kFloat);
  } else {
    scale = at::div(amax, 448.0);
    scale = scale.contiguous().view(at::kInt).add(255).bitwise_and(~255).view(at::kFloat);
  }
  scale = scale.clamp_min(0x1p-100);
  return ((blocks * scale.reciprocal()).to(format).to(at::kFloat) * scale).view(-1);
}

// One parameter of a rank that has the run to itself.
struct SingleParameter {
  SingleParameter(const Rank& rank, at::ScalarType dtype, int64_t n, const StateFormats& formats)
      : context(rank.world, layout::RankGrid({.world_size = 1})), set(dtype, at::kCPU) {
    parameter = &nn::ParameterScope(set).add({.name = "w.weight"}, {n});
    const at::NoGradGuard no_grad;
    parameter->value.copy_(at::arange(n, at::kDouble).sin());
    ddp.emplace(std::vector<nn::Parameter*>{parameter}, optim::DdpSettings{}, context);
    optimizer.emplace(std::vector{&*ddp}, optim::OptimizerSettings{.clip_grad = 0, .formats = formats}, context);
    for (optim::ParamGroup& group : optimizer->groups()) group.lr = 1e-2, group.weight_decay = 0.1;
  }
  at::Tensor state(const std::string& name) const {
    for (const auto& part : optimizer->sharded_state())
      if (part.name == "optimizer." + name + ".w.weight") return part.data().clone();
    return {};
  }

  const parallel::ParallelContext context;
  nn::ParameterSet set;
  nn::Parameter* parameter = nullptr;
  std::optional<optim::DistributedDataParallel> ddp;
  std::optional<optim::Optimizer> optimizer;
  optim::GradScaler scaler = optim::GradScaler::constant(1);
};

struct FormatCase {
  at::ScalarType dtype, first, second, main;
};
class StoredAdam : public ::testing::TestWithParam<FormatCase> {};

// Each step is: widen, Adam in fp32, round. More elements than a piece has, and a number of them that fills no block.
TEST_P(StoredAdam, RoundsTheStateOfAnFp32Step) {
  const auto [dtype, first, second, main_format] = GetParam();
  constexpr int64_t n = (1 << 16) + 70, padded = (n + 63) / 64 * 64;
  const bool half = dtype != at::kFloat;
  run_ranks(1, [&](const Rank& rank) {
    SingleParameter actual(rank, dtype, n, moments(first, second, main_format));
    const auto with_padding = [&](const at::Tensor& x) { return at::constant_pad_nd(x, {0, padded - n}); };
    at::Tensor main = with_padding(actual.parameter->value.detach().to(at::kFloat));
    if (half) main = rounded(main, main_format);
    at::Tensor m = at::zeros({padded}), v = at::zeros({padded});
    for (int64_t step = 1; step <= 4; ++step) {
      const at::Tensor grad =
          at::exp(at::arange(n, at::kDouble).mul(static_cast<double>(step)).cos() * 6).to(at::kFloat);
      actual.parameter->grad.main_grad.copy_(grad);
      EXPECT_TRUE(actual.optimizer->step(actual.scaler).updated);
      ops::adam_update({main, with_padding(grad), m, v, {}}, {}, {.lr = 1e-2, .step = step});  // vectors do not decay
      m = rounded(m, first);
      v = rounded(v, second);
      if (half) main = rounded(main, main_format);
      expect_identical(actual.state("exp_avg"), m.narrow(0, 0, n).to(actual.state("exp_avg").scalar_type()), "m");
      expect_identical(actual.state("exp_avg_sq"), v.narrow(0, 0, n).to(actual.state("exp_avg_sq").scalar_type()), "v");
      if (half) expect_identical(actual.state("main"), main.narrow(0, 0, n), "main parameters");
      // Beside remainders, ties go away from zero.
      const bool remainders = dtype == at::kBFloat16 && main_format == at::kFloat;
      const at::Tensor near =
          remainders ? main.view(at::kInt).add(0x8000).bitwise_and(-0x10000).view(at::kFloat) : main;
      expect_identical(actual.parameter->value.detach(), near.narrow(0, 0, n).to(dtype), "parameters");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredAdam,
                         ::testing::Values(FormatCase{at::kBFloat16, at::kFloat, at::kFloat, at::kFloat},
                                           FormatCase{at::kBFloat16, at::kBFloat16, at::kBFloat16, at::kFloat},
                                           FormatCase{at::kBFloat16, at::kHalf, at::kHalf, at::kHalf},
                                           FormatCase{at::kBFloat16, kFp8, kFp8, at::kFloat},
                                           FormatCase{at::kHalf, kFp8, at::kBFloat16, at::kHalf},
                                           FormatCase{at::kHalf, at::kHalf, kFp8, at::kFloat},
                                           FormatCase{at::kFloat, kFp8, at::kHalf, at::kHalf}),
                         [](const auto& test) { return fmt::format("case{}", test.index); });

// A run without formats, and one whose formats are all fp32, are the same program.
TEST(StateFormats, Fp32IsTheOrdinaryOptimizer) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  TrainCase how{.dp = 2, .steps = 3};
  const TrainResult plain = train(folder, batch, how);
  how.optimizer.formats = moments(at::kFloat, at::kFloat);
  const TrainResult named = train(folder, batch, how);
  EXPECT_EQ(named.losses, plain.losses);
  for (const auto& [name, value] : plain.weights) expect_identical(named.weights.at(name), value, name);
}

// Remainders lose nothing: main parameters have the bits of a run that keeps them whole. (Parameters may differ where
// one lies in the middle of two bf16 numbers; none does here.)
TEST(StateFormats, RemaindersAreTheWholeMainParameters) {
  std::map<bool, at::Tensor> mains, params;
  for (const bool remainders : {false, true})
    run_ranks(1, [&](const Rank& rank) {
      SingleParameter one(rank, at::kBFloat16, 1000, {.remainders = remainders});
      for (int step = 0; step < 5; ++step) {
        one.parameter->grad.main_grad.copy_((at::arange(1000, at::kFloat) * (step + 1)).cos());
        one.optimizer->step(one.scaler);
      }
      mains[remainders] = one.state("main");
      params[remainders] = one.parameter->value.detach().clone();
    });
  expect_identical(mains[true], mains[false], "main parameters");
  expect_identical(params[true], params[false], "parameters");
}

// Bytes per parameter, and no fp32 copy of the state at any moment of a step.
TEST(StateFormats, TakeTheBytesThatTheySay) {
  struct Case {
    StateFormats formats;
    at::ScalarType dtype;
    double bytes;  // main parameter and moments
  };
  constexpr double kScale = 4.0 / 64;
  for (const Case& c :
       {Case{{}, at::kBFloat16, 12}, Case{moments(at::kFloat, at::kFloat), at::kBFloat16, 10},
        Case{moments(at::kBFloat16, at::kBFloat16), at::kBFloat16, 6},
        Case{moments(at::kHalf, at::kHalf, at::kHalf), at::kBFloat16, 6 + 3 * kScale},
        Case{moments(kFp8, at::kBFloat16), at::kBFloat16, 5 + kScale},
        Case{moments(kFp8, kFp8), at::kBFloat16, 4 + 2 * kScale}, Case{moments(kFp8, kFp8), at::kHalf, 6 + 2 * kScale},
        Case{moments(kFp8, kFp8), at::kFloat, 2 + 2 * kScale}})
    for (const double offload : {0.0, 1.0})
      run_ranks(1, [&](const Rank& rank) {
        const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
        constexpr int64_t n = 4 << 20;
        nn::ParameterSet set(c.dtype, at::kCPU);
        nn::Parameter& p = nn::ParameterScope(set).add({.name = "w.weight"}, {n});
        optim::DistributedDataParallel ddp({&p}, {}, context);
        const MemoryMeter meter;
        optim::Optimizer optimizer({&ddp}, {.offload_fraction = offload, .formats = c.formats}, context);
        const double own = c.bytes + (c.dtype == at::kFloat && offload > 0 ? 4 : 0);
        EXPECT_DOUBLE_EQ(static_cast<double>(optimizer.state_bytes(offload > 0)), own * n);
        EXPECT_NEAR(static_cast<double>(meter.current()), own * n, 1000);
        p.grad.main_grad.fill_(0.5);
        auto scaler = optim::GradScaler::constant(1);
        for (optim::ParamGroup& group : optimizer.groups()) group.lr = 1e-3;
        meter.reset_peak();
        optimizer.step(scaler);
        // Staging buffers of offloaded state have 2^20 elements each; scratch has 2^16.
        const double staging = offload > 0 ? 2.0 * (1 << 20) * (4 + 4) : 0;
        EXPECT_LT(static_cast<double>(meter.peak()), own * n + staging + 3.0 * (1 << 20));
      });
}

// State that was saved in one format continues in another: exactly where the other has at least as many bits.
TEST(StateFormats, AnyFormatLoadsAnyOther) {
  const std::vector<StateFormats> all{
      {}, moments(at::kBFloat16, at::kBFloat16), moments(at::kHalf, at::kHalf, at::kHalf), moments(kFp8, kFp8)};
  for (const StateFormats& from : all) {
    run_ranks(1, [&](const Rank& rank) {
      SingleParameter source(rank, at::kBFloat16, 1000, from);
      for (int step = 0; step < 3; ++step) {
        source.parameter->grad.main_grad.copy_((at::arange(1000, at::kFloat) * (step + 1)).cos());
        source.optimizer->step(source.scaler);
      }
      MemorySource saved;
      saved.save(source.optimizer->sharded_state());
      for (const StateFormats& to : all) {
        SingleParameter target(rank, at::kBFloat16, 1000, to);
        target.optimizer->load_state(saved, source.optimizer->progress_json());
        for (const std::string name : {"exp_avg", "exp_avg_sq", "main"}) {
          const at::Tensor there = source.state(name).to(at::kFloat), here = target.state(name).to(at::kFloat);
          const bool same = &from == &to || (to.states.empty() && to.main == at::kFloat);
          if (same)
            expect_identical(here, there, name);
          else
            expect_close(here, there, name, 0.07);  // half a unit of e4m3 is 1/16
        }
        const auto main = target.state("main");
        expect_close(target.parameter->value.detach().to(at::kFloat), main, "parameters", 1.0 / 256);
      }
    });
  }
}

// The formats follow the names of states, so a rule of a program has them too.
TEST(StateFormats, ProblemsAreNamed) {
  const auto problem = [](const optim::OptimizerSettings& settings) {
    return error_of<ConfigError>([&] { settings.validate(); });
  };
  EXPECT_EQ(problem({.formats = moments(kFp8, at::kHalf)}), "");
  EXPECT_EQ(problem({.rule = lion(), .formats = {.states = {{"exp_avg", kFp8}}}}), "");
  expect_contains(
      problem({.rule = std::make_shared<optim::Sgd>(), .formats = moments(kFp8, kFp8)}),
      "exp_avg_sq_dtype is not fp32, but the update rule sgd has no state exp_avg_sq; its states are: exp_avg");
  expect_contains(problem({.formats = {.main = at::kBFloat16}}), "main_params_dtype");
  expect_contains(problem({.formats = moments(at::kDouble, at::kFloat)}), "exp_avg_dtype is Double");
}

// A step that the device skips leaves the state as it is, although it is read and written again.
TEST(StateFormats, ASkippedStepChangesNothing) {
  run_ranks(1, [&](const Rank& rank) {
    SingleParameter one(rank, at::kBFloat16, 1000, moments(kFp8, at::kHalf));
    one.parameter->grad.main_grad.copy_(at::arange(1000, at::kFloat).cos());
    one.optimizer->step(one.scaler);
    const std::vector<at::Tensor> before{one.state("exp_avg"), one.state("exp_avg_sq"), one.state("main"),
                                         one.parameter->value.detach().clone()};
    one.parameter->grad.main_grad[5] = NAN;
    const at::Tensor terms = one.optimizer->norm_terms();
    one.optimizer->begin_step(one.scaler, optim::squares_of(terms));
    const optim::GradStats stats =
        optim::stats_of({terms.const_data_ptr<double>(), static_cast<size_t>(terms.numel())});
    EXPECT_FALSE(one.optimizer->finish_step(one.scaler, stats, /*begun=*/true).updated);
    const std::vector<at::Tensor> after{one.state("exp_avg"), one.state("exp_avg_sq"), one.state("main"),
                                        one.parameter->value.detach()};
    for (size_t i = 0; i < before.size(); ++i) expect_identical(after[i], before[i], fmt::format("state {}", i));
  });
}

// Main parameters alone: the bits that the weights of a bf16 model lack, without the moments.
TEST(StateFormats, MainParametersCanBeLoadedAlone) {
  run_ranks(1, [&](const Rank& rank) {
    SingleParameter source(rank, at::kBFloat16, 1000, {});
    source.parameter->grad.main_grad.copy_(at::arange(1000, at::kFloat).cos());
    source.optimizer->step(source.scaler);
    MemorySource saved;
    saved.save(source.optimizer->sharded_state());
    for (const StateFormats& formats : {StateFormats{}, moments(kFp8, kFp8)}) {
      SingleParameter target(rank, at::kBFloat16, 1000, formats);
      target.optimizer->load_main_params(saved);
      EXPECT_EQ(target.optimizer->steps(), 0);
      expect_identical(target.state("main"), source.state("main"), "main parameters");
      expect_identical(target.parameter->value.detach(), source.parameter->value.detach(), "parameters");
      EXPECT_FALSE(target.state("exp_avg").ne(0).any().item<bool>());
    }
  });
}

}  // namespace
}  // namespace megalith::testing

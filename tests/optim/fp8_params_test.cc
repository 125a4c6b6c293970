// Parameters that are kept in fp8: every rank casts its own shard, and together they have the cast of the whole weight.
#include "megalith/optim/fp8_params.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "megalith/nn/parameter/fp8_value.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/optim/optimizer.h"
#include "tests/optim/memory_source.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

using ops::Fp8Scaling;

struct Fp8Params {
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  at::ScalarType dtype = at::kBFloat16;
  at::ScalarType main = at::kFloat;
  double offload = 0;
  bool muon = false;
};

// Two weights in fp8 and a bias, on ranks that share the optimizer.
struct Fp8ParamsRank {
  Fp8ParamsRank(const Rank& rank, const Fp8Params& how)
      : context(rank.world, layout::RankGrid({.world_size = rank.size})), set(how.dtype, at::kCPU) {
    const nn::ParameterScope scope(set);
    const ops::Fp8Recipe recipe{.scaling = how.scaling};
    const at::NoGradGuard no_grad;
    for (const auto& [name, rows, columns] : {std::tuple("a", 512, 1024), std::tuple("b", 1024, 512)}) {
      nn::Parameter& weight =
          scope.add({.name = fmt::format("{}.weight", name), .use = nn::WeightUse::kColumn}, {rows, columns});
      nn::attach_fp8(weight, recipe);
      // Magnitudes that differ from square to square.
      const at::Tensor numbers = at::arange(weight.value.numel(), at::kDouble).mul_(0.37).sin_();
      weight.value.copy_((numbers.mul_(numbers.cumsum(0).mul_(0.01).cos_().add_(1.1))).view({rows, columns}));
      weights.push_back(&weight);
      before.push_back(weight.value.detach().clone());
    }
    bias = &scope.add({.name = "a.bias"}, {100});
    bias->value.fill_(1);
    std::vector<nn::Parameter*> all{weights[0], bias, weights[1]};
    ddp.emplace(all,
                optim::DdpSettings{.use_distributed_optimizer = true,
                                   .bucket_size = optim::BucketSize::elements(300'000),
                                   .matrices_apart = how.muon,
                                   .fp8_params = recipe},
                context);
    optimizer.emplace(std::vector{&*ddp},
                      optim::OptimizerSettings{.muon = how.muon ? std::make_shared<optim::Muon>() : nullptr,
                                               .clip_grad = 0,
                                               .offload_fraction = how.offload,
                                               .formats = {.main = how.main}},
                      context);
    for (optim::ParamGroup& group : optimizer->groups()) group.lr = 1e-2;
  }

  void step(int number) {
    const at::NoGradGuard no_grad;
    ddp->zero_grad();
    for (nn::Parameter* p : {weights[0], bias, weights[1]}) {
      p->grad.main_grad.copy_(at::arange(p->value.numel(), at::kDouble).mul_(number).cos_().view(p->value.sizes()));
      p->grad.stale = false;
    }
    ddp->finish_grad_sync();
    EXPECT_TRUE(optimizer->step(scaler).updated);
  }

  parallel::ParallelContext context;
  nn::ParameterSet set;
  std::vector<nn::Parameter*> weights;
  std::vector<at::Tensor> before;
  nn::Parameter* bias = nullptr;
  std::optional<optim::DistributedDataParallel> ddp;
  std::optional<optim::Optimizer> optimizer;
  optim::GradScaler scaler = optim::GradScaler::constant(1);
};

// The weight as a product would cast it.
ops::Fp8Matrix cast_whole(const at::Tensor& weight, Fp8Scaling scaling) {
  if (scaling == Fp8Scaling::kBlocks)
    return ops::to_fp8_blocks(weight, ops::Fp8Kind::kE4m3, ops::Fp8Blocks::kSquares, true, false);
  return ops::to_fp8(weight, {.columns = false});
}

void expect_cast_of(const nn::Parameter& weight, const at::Tensor& exact, Fp8Scaling scaling) {
  const ops::Fp8Matrix wanted = cast_whole(exact, scaling);
  EXPECT_EQ(weight.value.scalar_type(), at::kFloat8_e4m3fn);
  expect_identical(weight.value.detach().view(at::kByte), wanted.rows.view(at::kByte), weight.spec.name);
  expect_identical(weight.attached.bytes->inverse_scale, wanted.inverse_scale, weight.spec.name + "'s scales");
}

TEST(Fp8Params, AreTheCastOfTheWholeWeight) {
  for (const Fp8Params& how : {Fp8Params{}, Fp8Params{.scaling = Fp8Scaling::kBlocks}, Fp8Params{.dtype = at::kFloat},
                               Fp8Params{.scaling = Fp8Scaling::kBlocks, .main = at::kHalf},
                               Fp8Params{.main = at::kHalf, .offload = 0.4}, Fp8Params{.muon = true}})
    for (const int ranks : {1, 2, 3, 5}) {
      SCOPED_TRACE(fmt::format("{} ranks, scaling {}", ranks, static_cast<int>(how.scaling)));
      MemorySource saved;
      run_ranks(ranks, [&](const Rank& rank) {
        Fp8ParamsRank run(rank, how);
        // fp16 main parameters round what was loaded; the others are what was loaded.
        if (how.main == at::kFloat)
          for (size_t i = 0; i < run.weights.size(); ++i) expect_cast_of(*run.weights[i], run.before[i], how.scaling);
        for (int number = 1; number <= 2; ++number) run.step(number);
        saved.save(run.optimizer->sharded_state());
        run.context.world().world().barrier("saved");
        for (const nn::Parameter* weight : run.weights) {
          const at::Tensor main = saved.whole().at("optimizer.main." + weight->spec.name);
          expect_cast_of(*weight, main.to(how.dtype), how.scaling);
        }
      });
    }
}

// Exports take the main parameters; of all ranks exactly one writes each number.
TEST(Fp8Params, AreSavedFromMainParameters) {
  for (const at::ScalarType main : {at::kFloat, at::kHalf}) {
    MemorySource weights, state;
    run_ranks(3, [&](const Rank& rank) {
      Fp8ParamsRank run(rank, {.main = main});
      run.step(1);
      for (const nn::Parameter* weight : run.weights) {
        const nn::SavedShards shards = nn::saved_shards(*weight);
        EXPECT_TRUE(shards.owned);
        weights.save(shards.parts);
      }
      state.save(run.optimizer->sharded_state());
      run.context.world().world().barrier("saved");
      for (const nn::Parameter* weight : run.weights)
        expect_identical(weights.whole().at(weight->spec.name),
                         state.whole().at("optimizer.main." + weight->spec.name).to(at::kBFloat16).to(at::kFloat),
                         weight->spec.name);
      // Without an optimizer the bytes are all that is left.
      run.optimizer.reset();
      const nn::SavedShards shards = nn::saved_shards(*run.weights[0]);
      EXPECT_FALSE(shards.owned);
      const ops::Fp8Matrix bytes{.rows = run.weights[0]->value.detach(),
                                 .inverse_scale = run.weights[0]->attached.bytes->inverse_scale};
      expect_identical(shards.parts.at(0).data(), ops::from_fp8(bytes.rows, bytes.inverse_scale).to(at::kBFloat16),
                       "bytes");
    });
  }
}

TEST(Fp8Params, TakeOverWhatIsLoaded) {
  run_ranks(2, [&](const Rank& rank) {
    Fp8ParamsRank run(rank, {.scaling = Fp8Scaling::kBlocks});
    const at::Tensor other = run.before[0].flip(0);
    nn::loadable(*run.weights[0]).copy_(other);
    run.optimizer->reload_main_params();
    expect_cast_of(*run.weights[0], other, Fp8Scaling::kBlocks);
    expect_cast_of(*run.weights[1], run.before[1], Fp8Scaling::kBlocks);
  });
}

// The scale of a step is that of the history; what it was made of enters the history at the step's end.
TEST(Fp8Params, FollowTheHistoryOfTheDelayedRecipe) {
  run_ranks(2, [&](const Rank& rank) {
    Fp8ParamsRank run(rank, {.scaling = Fp8Scaling::kDelayed});
    nn::Parameter& weight = *run.weights[0];
    expect_cast_of(weight, run.before[0], Fp8Scaling::kTensor);  // no step has ended
    const at::Tensor first = run.before[0].abs().max().to(at::kFloat).view({1});
    nn::end_fp8_step(run.weights, run.context.world().world());
    run.step(1);
    const at::Tensor scale = 448 / first;
    EXPECT_NEAR(weight.attached.bytes->inverse_scale.item<float>(), 1 / scale.item<float>(), 1e-9);
    nn::end_fp8_step(run.weights, run.context.world().world());
    EXPECT_GT(weight.attached.fp8->state[nn::Fp8History::kWeight][1].item<float>(), 0);
    EXPECT_NE(weight.attached.fp8->state[nn::Fp8History::kWeight][1].item<float>(), first.item<float>());
  });
}

TEST(Fp8Params, NeedTheDistributedOptimizer) {
  expect_error<ConfigError>([] { optim::DdpSettings{.fp8_params = ops::Fp8Recipe{}}.validate(); },
                            {"fp8_param", "use_distributed_optimizer"});
}

}  // namespace
}  // namespace megalith::testing

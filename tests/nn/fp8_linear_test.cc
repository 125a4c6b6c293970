// Linear layers whose products are in fp8: near the exact ones for any number of tokens, and the exact ones where the
// widths do not fit.
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kFp8Tokens = 64, kFp8Hidden = 64, kFp8Width = 128;

struct Result {
  at::Tensor y, dx;
  FullTensors grads;
};

double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).norm() / expected.norm()).item<double>();
}

// A column layer into a row layer; gradients through both.
Result run(TensorParallel tp, std::optional<ops::Fp8Recipe> fp8, int64_t tokens, bool main_grads,
           int64_t hidden = kFp8Hidden, int64_t width = kFp8Width, int steps = 1) {
  tp.fp8 = fp8;
  ParameterSet set(at::kFloat, at::kCPU);
  const ColumnParallelLinear up(ParameterScope(set), "up", hidden, {{"up", width}}, true, Init::zeros(), tp);
  const RowParallelLinear down(ParameterScope(set), "down", width, hidden, true, Init::zeros(), tp);
  load(set, {{"up.weight", random_tensor({width, hidden}, 1, 0.1)},
             {"up.bias", random_tensor({width}, 2, 0.1)},
             {"down.weight", random_tensor({hidden, width}, 3, 0.1)},
             {"down.bias", random_tensor({hidden}, 4, 0.1)}});
  std::vector<Parameter*> parameters;
  for (const auto& parameter : set.all()) parameters.push_back(parameter.get());
  Result result;
  for (int step = 0; step < steps; ++step) {
    if (main_grads) attach_main_grads(set);
    for (Parameter* parameter : parameters) parameter->value.mutable_grad().reset();
    const at::Tensor x = leaf(between_blocks(random_tensor({tokens, hidden}, 5), tp));
    const at::Tensor residual = between_blocks(random_tensor({tokens, hidden}, 6), tp);
    const at::Tensor y = down.forward(at::silu(up.forward(x)), residual);
    y.backward(between_blocks(random_tensor({tokens, hidden}, 7), tp).contiguous());
    result = {y.detach(), x.grad(), {}};
    for (const Parameter* parameter : parameters) result.grads[parameter->spec.name] = grad_of(*parameter).clone();
    end_fp8_step(parameters, tp.group);
  }
  return result;
}

void expect_near(const Result& actual, const Result& exact, double tolerance) {
  EXPECT_LT(error_of(actual.y, exact.y), tolerance);
  EXPECT_LT(error_of(actual.dx, exact.dx), tolerance);
  for (const auto& [name, grad] : exact.grads) EXPECT_LT(error_of(actual.grads.at(name), grad), tolerance) << name;
  EXPECT_GT(error_of(actual.y, exact.y), 1e-5) << "nothing was rounded";
}

TEST(Fp8Linear, IsNearTheExactProducts) {
  for (const auto format : {ops::Fp8Format::kE4m3, ops::Fp8Format::kHybrid})
    for (const bool main_grads : {false, true})
      run_all_layouts([&](const TensorParallel& tp) {
        const Result exact = run(tp, std::nullopt, kFp8Tokens, main_grads);
        expect_near(run(tp, ops::Fp8Recipe{.format = format}, kFp8Tokens, main_grads), exact, 0.1);
      });
}

TEST(Fp8Linear, LeavesWidthsAloneThatDoNotFit) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    const Result actual = run(tp, ops::Fp8Recipe{}, kFp8Tokens, true, 24),
                 exact = run(tp, std::nullopt, kFp8Tokens, true, 24);
    expect_identical(actual.y, exact.y, "output");
    expect_identical(actual.dx, exact.dx, "gradient of the input");
  });
}

constexpr ops::Fp8Recipe kInBlocks{.format = ops::Fp8Format::kE4m3, .scaling = ops::Fp8Scaling::kBlocks};
constexpr ops::Fp8Recipe kDelayed{.scaling = ops::Fp8Scaling::kDelayed};

// Errors of few tokens average out less.
constexpr double kFewTokens = 0.2;

TEST(Fp8Linear, TakesAnyNumberOfTokens) {
  run_all_layouts([&](const TensorParallel& tp) {
    for (const int64_t tokens : {4, 20, 68}) {
      const Result exact = run(tp, std::nullopt, tokens, true);
      expect_near(run(tp, ops::Fp8Recipe{}, tokens, true), exact, kFewTokens);
      expect_near(run(tp, kDelayed, tokens, true, kFp8Hidden, kFp8Width, 2), exact, kFewTokens);
    }
    expect_near(run(tp, kInBlocks, 132, true, 512, 2048), run(tp, std::nullopt, 132, true, 512, 2048), 0.1);
  });
}

// One layer without a bias, whose output is zero for an input of zeros.
Result run_one(const std::optional<ops::Fp8Recipe>& fp8, const at::Tensor& input, const at::Tensor& grad) {
  Result result;
  run_tp({1, false}, [&](TensorParallel tp) {
    tp.fp8 = fp8;
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear up(ParameterScope(set), "up", 512, {{"up", 1024}}, false, Init::zeros(), tp);
    load(set, {{"up.weight", random_tensor({1024, 512}, 1, 0.1)}});
    attach_main_grads(set);
    const at::Tensor x = leaf(input);
    const at::Tensor y = up.forward(x);
    y.backward(grad);
    result = {y.detach(), x.grad(), {{"up.weight", grad_of(*set.all()[0])}}};
  });
  return result;
}

TEST(Fp8Linear, PaddedTokensAreThoseOfAPaddedBatch) {
  const at::Tensor x = random_tensor({100, 512}, 5), dy = random_tensor({100, 1024}, 7);
  for (const ops::Fp8Recipe& recipe : {ops::Fp8Recipe{}, kDelayed, kInBlocks}) {
    const Result actual = run_one(recipe, x, dy), exact = run_one(std::nullopt, x, dy),
                 padded =
                     run_one(recipe, at::constant_pad_nd(x, {0, 0, 0, 28}), at::constant_pad_nd(dy, {0, 0, 0, 28}));
    expect_identical(actual.y, padded.y.narrow(0, 0, 100), "output");
    expect_identical(actual.dx, padded.dx.narrow(0, 0, 100), "gradient of the input");
    expect_identical(actual.grads.at("up.weight"), padded.grads.at("up.weight"), "gradient of the weight");
    expect_near(actual, exact, 0.1);
  }
}

TEST(Fp8Linear, WeightGradientsWithoutFp8) {
  const at::Tensor x = random_tensor({128, 512}, 5), dy = random_tensor({128, 1024}, 7);
  const Result exact = run_one(std::nullopt, x, dy);
  for (ops::Fp8Recipe recipe : {ops::Fp8Recipe{}, kDelayed, kInBlocks}) {
    const Result whole = run_one(recipe, x, dy);
    recipe.weight_gradients = false;
    const Result mixed = run_one(recipe, x, dy);
    expect_identical(mixed.y, whole.y, "output");
    expect_identical(mixed.dx, whole.dx, "gradient of the input");
    expect_identical(mixed.grads.at("up.weight"), exact.grads.at("up.weight"), "gradient of the weight");
    EXPECT_GT(error_of(whole.grads.at("up.weight"), exact.grads.at("up.weight")), 1e-5);
  }
}

// Sequence parallelism gathers the input again for a weight gradient that needs it.
TEST(Fp8Linear, WeightGradientsWithoutFp8InEveryLayout) {
  run_all_layouts([&](const TensorParallel& tp) {
    for (const bool main_grads : {false, true})
      expect_near(run(tp, ops::Fp8Recipe{.weight_gradients = false}, 20, main_grads),
                  run(tp, std::nullopt, 20, main_grads), kFewTokens);
  });
}

TEST(Fp8Linear, OfTheDelayedRecipe) {
  const ops::Fp8Recipe recipe{.scaling = ops::Fp8Scaling::kDelayed, .history = 2, .most_recent = false};
  for (const int steps : {1, 2, 4})
    run_all_layouts([&](const TensorParallel& tp) {
      const Result exact = run(tp, std::nullopt, kFp8Tokens, true);
      expect_near(run(tp, recipe, kFp8Tokens, true, kFp8Hidden, kFp8Width, steps), exact, 0.1);
    });
}

// The second step of the same tensors has the scales that the first found in them.
TEST(Fp8Linear, DelayedScalesAreThoseOfTheStepBefore) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    const ops::Fp8Recipe delayed{.scaling = ops::Fp8Scaling::kDelayed};
    const Result tensorwise = run(tp, ops::Fp8Recipe{}, kFp8Tokens, true),
                 second = run(tp, delayed, kFp8Tokens, true, kFp8Hidden, kFp8Width, 2);
    EXPECT_LT(error_of(second.y, tensorwise.y), 1e-3);
    EXPECT_LT(error_of(second.dx, tensorwise.dx), 5e-3);
  });
}

TEST(Fp8Linear, InBlocks) {
  run_all_layouts([&](const TensorParallel& tp) {
    for (const bool main_grads : {false, true}) {
      const ops::Fp8Recipe recipe{.format = ops::Fp8Format::kE4m3, .scaling = ops::Fp8Scaling::kBlocks};
      const Result exact = run(tp, std::nullopt, 256, main_grads, 512, 2048);
      expect_near(run(tp, recipe, 256, main_grads, 512, 2048), exact, 0.1);
    }
  });
}

// A parameter with a history alone.
Parameter with_history(const ops::Fp8Recipe& recipe) {
  Parameter parameter({.name = "w"});
  parameter.attached.fp8 = fp8_history(recipe, at::kCPU);
  return parameter;
}

TEST(Fp8History, ScalesFollowTheLargestMagnitudes) {
  testing::run_ranks(2, [](const testing::Rank& r) {
    for (const bool most_recent : {false, true}) {
      Parameter p =
          with_history({.scaling = ops::Fp8Scaling::kDelayed, .history = 2, .most_recent = most_recent, .margin = 1});
      Parameter* const all[] = {&p};
      const auto step = [&](std::vector<double> seen) {
        if (r.rank == 1) seen = {0, 0, 0};  // the largest of the ranks counts
        p.attached.fp8->seen.copy_(at::tensor(seen, at::kFloat));
        end_fp8_step(all, r.world.world());
        return p.attached.fp8->state.select(1, 0).clone();
      };
      EXPECT_TRUE(p.attached.fp8->fresh);
      EXPECT_FALSE(p.attached.fp8->cast(Fp8History::kInput, false).scale.defined());
      EXPECT_TRUE(step({7, 2, 1}).equal(at::tensor({32.0F, 112.0F, 28672.0F})));
      EXPECT_FALSE(p.attached.fp8->fresh);
      EXPECT_EQ(p.attached.fp8->seen.abs().sum().item<double>(), 0);
      EXPECT_EQ(p.attached.fp8->cast(Fp8History::kWeight, false).scale.item<float>(), 112);
      const at::Tensor second = step({3.5, 0, INFINITY});
      EXPECT_EQ(second[0].item<float>(), most_recent ? 64.0F : 32.0F);
      EXPECT_EQ(second[1].item<float>(), 112.0F) << "nothing was seen, or it is still remembered";
      EXPECT_EQ(second[2].item<float>(), 28672.0F) << "what is not finite changes nothing";
      EXPECT_EQ(step({3.5, 1, 1})[0].item<float>(), 64.0F) << "7 is forgotten";
    }
  });
}

TEST(Fp8History, OnlyTheDelayedRecipeHasOne) {
  EXPECT_FALSE(fp8_history(std::nullopt, at::kCPU));
  EXPECT_FALSE(fp8_history(ops::Fp8Recipe{}, at::kCPU));
  Parameter none({.name = "w"});
  Parameter* const all[] = {&none};
  const auto worlds = comm::World::in_process(1);
  end_fp8_step(all, worlds[0]->world());  // nothing to do
}

}  // namespace
}  // namespace megalith::nn

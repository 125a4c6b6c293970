// A layer that multiplies by way of a Product has updates of low rank, fp8 and deferred weight gradients without code
// of its own.
#include "megalith/nn/tensor_parallel/product.h"

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The new layer: y = 2 x Wᵀ. It knows nothing of updates, fp8 or queues.
struct TwiceFunction : Function<TwiceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList, const ProductPtr& product) {
    Saved saved;
    at::Tensor y = product->forward(x, {}, saved);
    ctx->save_for_backward(saved.all());
    ops::save_state(ctx, product);
    return y.mul_(2);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Product& product = *ops::saved_state<ProductPtr>(ctx);
    const Saved saved = Saved::from(ctx->get_saved_variables());
    const OutputGrad dy = product.output_grad(grads[0] * 2);
    variable_list result = product.grad_weights(dy, saved);
    result.insert(result.begin(), product.grad_input(dy, saved));
    result.emplace_back();
    return result;
  }
};
at::Tensor twice(const at::Tensor& x, Parameter& weight, const std::optional<ops::Fp8Recipe>& fp8) {
  const ProductPtr product = make_product(weight, {.tokens = x.size(0)}, fp8);
  const std::vector<at::Tensor> weights = product->weights();
  return TwiceFunction::apply(x, at::TensorList(weights), product);
}

constexpr int64_t kProductTokens = 32, kProductIn = 16, kProductOut = 48, kProductRank = 4;
constexpr double kProductScale = 0.5;

struct ProductResult {
  at::Tensor y, dx;
  FullTensors grads;  // gradients of "w", of "a" and "b" with an update, and of its magnitudes "m"
};

struct ProductCase {
  bool update = false, trained = true, main_grads = false, deferred = false;
  std::optional<ops::Fp8Recipe> fp8 = {};
  bool magnitudes = false;  // the update has them
};

at::Tensor product_input() { return random_tensor({kProductTokens, kProductIn}, 1); }
at::Tensor product_grad() { return random_tensor({kProductTokens, kProductOut}, 2); }
FullTensors product_weights(bool update, bool magnitudes = false) {
  FullTensors weights{{"w", random_tensor({kProductOut, kProductIn}, 3)}};
  if (!update) return weights;
  weights["a"] = random_tensor({kProductRank, kProductIn}, 4);
  weights["b"] = random_tensor({kProductOut, kProductRank}, 5);
  if (magnitudes) weights["m"] = random_tensor({kProductOut}, 6).abs();
  return weights;
}

// The layer forward and back.
ProductResult run_product(const ProductCase& how) {
  ParameterSet set(at::kFloat, at::kCPU);
  const ParameterScope scope(set);
  Parameter& weight = scope.add({.name = "w", .use = WeightUse::kReplicated}, {kProductOut, kProductIn});
  const LowRankState state{.active = true, .training = true};
  LowRank update{.rank = kProductRank, .parts = {{.rows = kProductOut, .scale = kProductScale}}, .state = &state};
  if (how.update) {
    update.a = &scope.add({.name = "a"}, {kProductRank, kProductIn});
    update.b = &scope.add({.name = "b"}, {kProductOut, kProductRank});
    if (how.magnitudes) update.magnitude = &scope.add({.name = "m"}, {kProductOut});
    weight.attached.update = &update;
  }
  load(set, product_weights(how.update, how.magnitudes));
  weight.value.requires_grad_(how.trained);
  if (how.main_grads) attach_main_grads(set);
  WeightGradQueue queue;
  if (how.deferred)
    for (const auto& parameter : set.all()) parameter->grad.queue = &queue;

  const at::Tensor x = leaf(product_input());
  const at::Tensor y = twice(x, weight, how.fp8);
  if (how.deferred) {
    {
      const WeightGradQueue::Recording recording(queue);
      y.backward(product_grad());
    }
    for (const auto& parameter : set.all())
      EXPECT_TRUE(parameter->grad.stale) << parameter->spec.name << " was not left for later";
    queue.run_oldest();
  } else {
    y.backward(product_grad());
  }
  ProductResult result{y.detach(), x.grad(), {}};
  for (const auto& parameter : set.all())
    if (parameter->value.requires_grad()) result.grads[parameter->spec.name] = grad_of(*parameter).clone();
  return result;
}

Expected product_definition(bool update) {
  return evaluate(
      [&](const at::Tensor& x, const FullTensors& w) {
        const at::Tensor y = x.mm(w.at("w").t());
        return 2 * (update ? y + kProductScale * x.mm(w.at("a").t()).mm(w.at("b").t()) : y);
      },
      product_input(), product_weights(update), product_grad());
}

double error_of_product(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

void expect_product(const ProductResult& actual, const Expected& expected, double tolerance) {
  EXPECT_LT(error_of_product(actual.y, expected.y), tolerance);
  EXPECT_LT(error_of_product(actual.dx, expected.dx), tolerance);
  for (const auto& [name, grad] : actual.grads)
    EXPECT_LT(error_of_product(grad, expected.grads.at(name)), tolerance) << name;
}

TEST(Product, GivesALayerUpdatesOfLowRank) {
  for (const bool main_grads : {false, true})
    for (const bool trained : {false, true}) {
      const ProductResult actual = run_product({.update = true, .trained = trained, .main_grads = main_grads});
      EXPECT_EQ(actual.grads.size(), trained ? 3U : 2U);
      expect_product(actual, product_definition(true), 1e-5);
    }
}

TEST(Product, GivesALayerFp8) {
  const std::optional<ops::Fp8Recipe> fp8 = ops::Fp8Recipe{};
  for (const bool main_grads : {false, true}) {
    const ProductResult actual = run_product({.main_grads = main_grads, .fp8 = fp8});
    expect_product(actual, product_definition(false), 0.1);
    EXPECT_GT(error_of_product(actual.y, product_definition(false).y), 1e-5) << "nothing was rounded";
  }
}

// Only the base product is in fp8. The gradients of A and B do not pass through it.
TEST(Product, GivesALayerUpdatesBesideFp8) {
  for (const bool main_grads : {false, true})
    for (const bool trained : {false, true}) {
      const ProductCase dense{.update = true, .trained = trained, .main_grads = main_grads};
      ProductCase in_fp8 = dense;
      in_fp8.fp8 = ops::Fp8Recipe{};
      const ProductResult actual = run_product(in_fp8), expected = run_product(dense);
      expect_product(actual, product_definition(true), 0.1);
      EXPECT_GT(error_of_product(actual.y, expected.y.to(at::kDouble)), 1e-5) << "nothing was rounded";
      EXPECT_GT(error_of_product(actual.dx, expected.dx.to(at::kDouble)), 1e-5) << "nothing was rounded";
      for (const char* name : {"a", "b"}) expect_identical(actual.grads.at(name), expected.grads.at(name), name);
    }
}

TEST(Product, GivesALayerDeferredWeightGradients) {
  for (const bool update : {false, true})
    for (const auto& fp8 : {std::optional<ops::Fp8Recipe>(), std::optional(ops::Fp8Recipe{})}) {
      const ProductResult now = run_product({.update = update, .main_grads = true, .fp8 = fp8});
      const ProductResult later = run_product({.update = update, .main_grads = true, .deferred = true, .fp8 = fp8});
      expect_identical(later.y, now.y, "output");
      expect_identical(later.dx, now.dx, "gradient of the input");
      EXPECT_EQ(later.grads.size(), update ? 3U : 1U);
      for (const auto& [name, grad] : now.grads) expect_identical(later.grads.at(name), grad, "gradient of " + name);
    }
}

TEST(Product, GivesALayerUpdatesWithMagnitudes) {
  const Expected expected = evaluate(
      [](const at::Tensor& x, const FullTensors& w) {
        const at::Tensor sum = w.at("w") + kProductScale * w.at("b").mm(w.at("a"));
        const at::Tensor c = w.at("m") / sum.detach().square().sum(1).sqrt();
        return 2 * c * (x.mm(w.at("w").t()) + kProductScale * x.mm(w.at("a").t()).mm(w.at("b").t()));
      },
      product_input(), product_weights(true, true), product_grad());
  for (const bool main_grads : {false, true})
    for (const bool deferred : {false, true}) {
      if (deferred && !main_grads) continue;
      const ProductResult actual = run_product(
          {.update = true, .trained = false, .main_grads = main_grads, .deferred = deferred, .magnitudes = true});
      EXPECT_EQ(actual.grads.size(), 3U);
      expect_product(actual, expected, 1e-5);
    }
}

// dx in two steps, as layers take it that sum the update's part over ranks where it is narrow.
TEST(Product, GivesTheInputsGradientInTwoSteps) {
  ParameterSet set(at::kFloat, at::kCPU);
  const ParameterScope scope(set);
  Parameter& weight = scope.add({.name = "w", .use = WeightUse::kColumn}, {kProductOut, kProductIn});
  const LowRankState state;
  LowRank update{.a = &scope.add({.name = "a"}, {kProductRank, kProductIn}),
                 .b = &scope.add({.name = "b"}, {kProductOut, kProductRank}),
                 .rank = kProductRank,
                 .parts = {{.rows = kProductOut, .scale = kProductScale}},
                 .state = &state};
  weight.attached.update = &update;
  load(set, product_weights(true));
  const at::NoGradGuard no_grad;
  const ProductPtr product = make_product(weight, {.tokens = kProductTokens});
  Saved saved;
  product->forward(product_input(), {}, saved);
  const OutputGrad dy = product->output_grad(product_grad());
  EXPECT_EQ(dy.hidden.sizes(), (std::vector<int64_t>{kProductTokens, kProductRank}));
  const at::Tensor direct = product->grad_through_weight(dy, saved);
  expect_close(direct, product_grad().mm(product_weights(true).at("w")), "through the weight");
  product->add_grad_through_update(dy, saved, direct);
  expect_identical(direct, product->grad_input(dy, saved), "both");
}

}  // namespace
}  // namespace megalith::nn

// Weights that are kept in fp8: products with the bytes are those with a weight that is cast to the same bytes.
#include "megalith/nn/parameter/fp8_value.h"

#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

struct BytesResult {
  at::Tensor y, dx, dw;
};

// As the gradient buffers and the optimizer do it.
void keep_in_fp8(Parameter& weight, const ops::Fp8Recipe& recipe) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = weight.value.detach();
  const ops::Fp8Matrix cast = recipe.scaling == ops::Fp8Scaling::kBlocks
                                  ? ops::to_fp8_blocks(wide, ops::Fp8Kind::kE4m3, ops::Fp8Blocks::kSquares, true, false)
                                  : ops::to_fp8(wide, {.columns = false});
  weight.attached.bytes = std::make_shared<Fp8Value>(
      Fp8Value{.dtype = wide.scalar_type(), .inverse_scale = cast.inverse_scale, .loaded = {}});
  weight.value.set_data(cast.rows);
}

BytesResult run_with(const ops::Fp8Recipe& recipe, int64_t tokens, bool bytes) {
  BytesResult result;
  run_tp({1, false}, [&](TensorParallel tp) {
    tp.fp8 = recipe;
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer(ParameterScope(set), "up", 512, {{"up", 1024}}, false, Init::zeros(), tp);
    load(set, {{"up.weight", random_tensor({1024, 512}, 1, 0.1)}});
    Parameter& weight = *set.all()[0];
    attach_main_grads(set);
    if (bytes) keep_in_fp8(weight, recipe);
    const at::Tensor x = leaf(random_tensor({tokens, 512}, 2));
    const at::Tensor y = layer.forward(x);
    y.backward(random_tensor({tokens, 1024}, 3));
    result = {y.detach(), x.grad(), weight.grad.main_grad.clone()};
  });
  return result;
}

TEST(Fp8Value, ProductsTakeTheBytesAsTheyAre) {
  for (const auto scaling : {ops::Fp8Scaling::kTensor, ops::Fp8Scaling::kDelayed, ops::Fp8Scaling::kBlocks})
    for (const bool weight_gradients : {true, false})
      for (const int64_t tokens : {20, 128}) {
        const ops::Fp8Recipe recipe{.scaling = scaling, .weight_gradients = weight_gradients};
        const BytesResult kept = run_with(recipe, tokens, true), cast = run_with(recipe, tokens, false);
        expect_identical(kept.y, cast.y, "output");
        expect_identical(kept.dx, cast.dx, "gradient of the input");
        expect_identical(kept.dw, cast.dw, "gradient of the weight");
      }
}

TEST(Fp8Value, ProductsTakeNoTokens) {
  const BytesResult none = run_with({}, 0, true);
  EXPECT_EQ(none.y.sizes(), (std::vector<int64_t>{0, 1024}));
  EXPECT_EQ(none.dx.sizes(), (std::vector<int64_t>{0, 512}));
  EXPECT_EQ(none.dw.abs().max().item<double>(), 0);
}

TEST(Fp8Value, AWeightThatIsNotInFp8IsItsValue) {
  ParameterSet set(at::kFloat, at::kCPU);
  const Parameter& weight = ParameterScope(set).add({.name = "w.weight"}, {32, 16});
  EXPECT_TRUE(loadable(weight).is_same(weight.value));
  EXPECT_FALSE(saved_shards(weight).owned);
  EXPECT_TRUE(saved_shards(weight).parts.at(0).data().is_alias_of(weight.value));
}

}  // namespace
}  // namespace megalith::nn

// The gradient protocol of parameter.h: gradients that layers add to main_grad themselves, and how one knows that they
// are complete.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "megalith/nn/parameter/gradient_writer.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/embedding.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/linear_function.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

using torch::autograd::variable_list;

// Calls `body` when autograd is through with a leaf: after the last use of it in a backward pass.
class AccumulationHook {
 public:
  AccumulationHook(const at::Tensor& leaf, std::function<void()> body)
      : node_(torch::autograd::impl::grad_accumulator(leaf)) {
    node_->add_post_hook(std::make_unique<Hook>(std::move(body)));
  }

 private:
  struct Hook : torch::autograd::FunctionPostHook {
    explicit Hook(std::function<void()> b) : body(std::move(b)) {}
    variable_list operator()(const variable_list& outputs, const variable_list&) override {
      body();
      return outputs;
    }
    std::function<void()> body;
  };
  std::shared_ptr<torch::autograd::Node> node_;  // the leaf itself only refers to it weakly
};

constexpr int64_t kMainGradTokens = 8, kMainGradIn = 12, kMainGradOut = 8;

ColumnParallelLinear make_layer(ParameterSet& set, const TensorParallel& tp) {
  ColumnParallelLinear layer(ParameterScope(set), "up", kMainGradIn, {{"up", kMainGradOut}}, false, Init::zeros(), tp);
  load(set, {{"up.weight", whole_numbers({kMainGradOut, kMainGradIn}, 9)}});
  return layer;
}

// x Wᵀ on this rank and back, for micro-batch `i`. Whole numbers: every sum is exact.
void run_microbatch(const ColumnParallelLinear& layer, uint64_t i, const TensorParallel& tp, at::ScalarType dtype) {
  const at::Tensor x =
      between_blocks(whole_numbers({kMainGradTokens, kMainGradIn}, 10 + i), tp).to(dtype).requires_grad_();
  const at::Tensor dy = own_columns(whole_numbers({kMainGradTokens, kMainGradOut}, 20 + i), tp).contiguous();
  layer.forward(x).backward(dy.to(dtype));
}
at::Tensor weight_grad(uint64_t i, const TensorParallel& tp) {
  return own_columns(whole_numbers({kMainGradTokens, kMainGradOut}, 20 + i), tp)
      .t()
      .mm(whole_numbers({kMainGradTokens, kMainGradIn}, 10 + i));
}

TEST(MainGrad, AccumulatesOverMicrobatches) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer = make_layer(set, tp);
    attach_main_grads(set);
    run_microbatch(layer, 0, tp, at::kFloat);
    EXPECT_FALSE(layer.weight().grad.stale);
    expect_identical(layer.weight().grad.main_grad, weight_grad(0, tp), "first micro-batch over garbage");
    run_microbatch(layer, 1, tp, at::kFloat);
    expect_identical(layer.weight().grad.main_grad, weight_grad(0, tp) + weight_grad(1, tp), "both micro-batches");
    EXPECT_FALSE(layer.weight().value.grad().defined());
    layer.weight().grad.stale = true;  // the next step
    run_microbatch(layer, 2, tp, at::kFloat);
    expect_identical(layer.weight().grad.main_grad, weight_grad(2, tp), "first micro-batch of the next step");
  });
}

TEST(MainGrad, WithoutItAutogradAccumulates) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer = make_layer(set, tp);
    run_microbatch(layer, 0, tp, at::kFloat);
    run_microbatch(layer, 1, tp, at::kFloat);
    expect_identical(layer.weight().value.grad(), weight_grad(0, tp) + weight_grad(1, tp), "both micro-batches");
  });
}

TEST(MainGrad, OfBf16WeightsIsFp32) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kBFloat16, at::kCPU);
    const ColumnParallelLinear layer = make_layer(set, tp);
    attach_main_grads(set);
    run_microbatch(layer, 0, tp, at::kBFloat16);
    // Up to 8·3·3 = 72 in size: exact in bf16, too.
    expect_identical(layer.weight().grad.main_grad, weight_grad(0, tp), "first micro-batch");
    at::Tensor sum = weight_grad(0, tp);
    for (int i = 1; i < 51; ++i) {
      run_microbatch(layer, 0, tp, at::kBFloat16);
      sum += weight_grad(0, tp);
    }
    EXPECT_FALSE(at::equal(sum, sum.to(at::kBFloat16).to(at::kFloat)));  // bf16 would round here
    expect_identical(layer.weight().grad.main_grad, sum, "51 times");
  });
}

TEST(MainGrad, NoTokensGiveZeros) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer = make_layer(set, tp);
    attach_main_grads(set);
    layer.forward(at::empty({0, kMainGradIn}).requires_grad_()).backward(at::empty({0, kMainGradOut}));
    expect_identical(layer.weight().grad.main_grad, at::zeros({kMainGradOut, kMainGradIn}), "main_grad");
  });
}

// The gradient that autograd sees is undefined; the leaf's node runs all the same, once, when main_grad is complete.
TEST(MainGrad, AccumulationHookFiresOncePerBackward) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer = make_layer(set, tp);
    attach_main_grads(set);
    int fired = 0;
    at::Tensor seen;
    const AccumulationHook hook(layer.weight().value, [&] {
      ++fired;
      seen = layer.weight().grad.main_grad.clone();
    });
    run_microbatch(layer, 0, tp, at::kFloat);
    EXPECT_EQ(fired, 1);
    expect_identical(seen, weight_grad(0, tp), "main_grad in the hook");
    run_microbatch(layer, 1, tp, at::kFloat);
    EXPECT_EQ(fired, 2);
    expect_identical(seen, weight_grad(0, tp) + weight_grad(1, tp), "main_grad in the hook");
  });
}

// A weight that is embedding and head: the hook fires once, after both uses.
TEST(MainGrad, TiedWeightsAreCompleteAfterTheirLastUse) {
  constexpr int64_t vocab = 8, hidden = 4;
  const at::Tensor full = whole_numbers({vocab, hidden}, 1), ids = random_ids(kMainGradTokens, vocab, 2);
  const at::Tensor dy = whole_numbers({kMainGradTokens, vocab}, 3);
  const at::Tensor weight = leaf(full);
  weight.index_select(0, ids).mm(weight.t()).backward(dy);
  run_all_layouts([&](const TensorParallel& tp) {
    for (const bool main_grads : {false, true}) {
      SCOPED_TRACE(main_grads ? "main_grad" : "autograd");
      ParameterSet set(at::kFloat, at::kCPU);
      const VocabParallelEmbedding embedding(ParameterScope(set), {vocab, vocab}, hidden, Init::zeros(), tp);
      load(set, {{"weight", full}});
      if (main_grads) attach_main_grads(set);
      int fired = 0;
      at::Tensor seen;
      const AccumulationHook hook(embedding.weight().value, [&] {
        ++fired;
        seen = grad_of(embedding.weight()).clone();
      });
      const at::Tensor x = embedding.forward(ids);
      column_linear(x, embedding.weight(), nullptr, tp).backward(own_columns(dy, tp).contiguous());
      EXPECT_EQ(fired, 1);
      ASSERT_TRUE(seen.defined());
      expect_identical(seen, weight.grad().narrow(0, tp.share(vocab).first, tp.share(vocab).second), "gradient");
      EXPECT_EQ(embedding.weight().value.grad().defined(), !main_grads);
    }
  });
}

TEST(MainGrad, AWriterOverwritesFirstAndAddsAfterwards) {
  Parameter plain({.name = "w"}, at::ones({2, 3}));
  EXPECT_EQ(GradientWriter(plain).beta(), 0);
  EXPECT_EQ(GradientWriter(plain).done().sizes(), plain.value.sizes());  // goes to autograd

  Parameter attached({.name = "w"}, at::ones({2, 3}, at::kBFloat16));
  attached.grad.main_grad = at::full({2, 3}, 7.0);
  attached.grad.stale = true;
  for (const double beta : {0.0, 1.0}) {
    const GradientWriter writer(attached);
    EXPECT_EQ(writer.beta(), beta);
    EXPECT_TRUE(writer.into().is_same(attached.grad.main_grad));
    EXPECT_FALSE(writer.done().defined());  // in main_grad already
  }
}

// Recomputation runs a backward pass within the backward pass: still once for each use.
TEST(MainGrad, AccumulationHookFiresOnceUnderRecompute) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer = make_layer(set, tp);
    attach_main_grads(set);
    int fired = 0;
    const AccumulationHook hook(layer.weight().value, [&] { ++fired; });
    const at::Tensor x = leaf(between_blocks(whole_numbers({kMainGradTokens, kMainGradIn}, 10), tp));
    const at::Tensor y = recompute([&](const TensorList& in) { return layer.forward(in[0]); }, {x}, nullptr);
    y.backward(own_columns(whole_numbers({kMainGradTokens, kMainGradOut}, 20), tp).contiguous());
    EXPECT_EQ(fired, 1);
    expect_identical(layer.weight().grad.main_grad, weight_grad(0, tp), "main_grad");
  });
}

}  // namespace
}  // namespace megalith::nn

// The feed-forward block and the norm layer against plain ATen on the full weights.
#include "megalith/nn/mlp.h"

#include "megalith/nn/norm.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kMlpTokens = 8, kMlpHidden = 6, kMlpWidth = 12;

struct MlpCase {
  std::string name;
  bool gated, bias;
  ops::Activation activation;
  bool residual = false;
};

at::Tensor activate(const at::Tensor& x, ops::Activation activation) {
  switch (activation) {
    case ops::Activation::kSilu:
      return x * x.sigmoid();
    case ops::Activation::kGelu:
      return at::gelu(x);
    case ops::Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case ops::Activation::kQuickGelu:
      return x * (1.702 * x).sigmoid();
    case ops::Activation::kRelu:
      return x.relu();
    case ops::Activation::kSquaredRelu:
      return x.relu().pow(2);
  }
  return {};
}

at::Tensor full_mlp(const at::Tensor& x, const FullTensors& w, const MlpCase& c) {
  const auto linear = [&](const at::Tensor& in, const std::string& part) {
    const at::Tensor y = in.mm(w.at(part + ".weight").t());
    return c.bias ? y + w.at(part + ".bias") : y;
  };
  const at::Tensor inner =
      c.gated ? activate(linear(x, "gate"), c.activation) * linear(x, "up") : activate(linear(x, "up"), c.activation);
  return linear(inner, "down");
}

class MlpTest : public ::testing::TestWithParam<MlpCase> {
 protected:
  static void run(bool main_grads) {
    const MlpCase& c = GetParam();
    FullTensors weights;
    uint64_t seed = 10;
    for (const char* part : {"gate", "up", "down"}) {
      if (!c.gated && std::string(part) == "gate") continue;
      const bool down = std::string(part) == "down";
      const int64_t out = down ? kMlpHidden : kMlpWidth, in = down ? kMlpWidth : kMlpHidden;
      weights[std::string(part) + ".weight"] = random_tensor({out, in}, ++seed, 0.5);
      if (c.bias) weights[std::string(part) + ".bias"] = random_tensor({out}, ++seed, 0.5);
    }
    const at::Tensor x = random_tensor({kMlpTokens, kMlpHidden}, 1), dy = random_tensor({kMlpTokens, kMlpHidden}, 2);
    const at::Tensor residual = random_tensor({kMlpTokens, kMlpHidden}, 3);
    const Expected expected =
        evaluate([&](const at::Tensor& in,
                     const FullTensors& w) { return c.residual ? full_mlp(in, w, c) + residual : full_mlp(in, w, c); },
                 x, weights, dy);
    run_all_layouts([&](const TensorParallel& tp) {
      ParameterSet set(at::kFloat, at::kCPU);
      const MlpShape shape{
          .hidden = kMlpHidden, .width = kMlpWidth, .gated = c.gated, .bias = c.bias, .activation = c.activation};
      const Mlp mlp(ParameterScope(set), shape, tp);
      load(set, weights);
      if (main_grads) attach_main_grads(set);
      const at::Tensor in = leaf(between_blocks(x, tp));
      const at::Tensor own_residual = c.residual ? leaf(between_blocks(residual, tp)) : at::Tensor();
      const at::Tensor y = mlp.forward(in, own_residual);
      expect_close(y, between_blocks(expected.y, tp), "output");
      y.backward(between_blocks(dy, tp));
      expect_close(in.grad(), between_blocks(expected.dx, tp), "gradient of the input", 0,
                   testing::kClose * expected.dx.abs().max().item<double>());
      if (c.residual) expect_close(own_residual.grad(), between_blocks(dy, tp), "gradient of the residual");
      expect_grads(set, expected.grads, tp);
    });
  }
};

TEST_P(MlpTest, EqualsTheFullLayer) { run(/*main_grads=*/false); }
TEST_P(MlpTest, WritesIntoMainGrad) { run(/*main_grads=*/true); }

INSTANTIATE_TEST_SUITE_P(
    Shapes, MlpTest,
    ::testing::Values(MlpCase{"SwiGlu", true, false, ops::Activation::kSilu},
                      MlpCase{"SwiGluWithBiasAndResidual", true, true, ops::Activation::kSilu, true},
                      MlpCase{"GeGlu", true, false, ops::Activation::kGeluTanh, true},
                      MlpCase{"PlainGelu", false, false, ops::Activation::kGelu},
                      MlpCase{"PlainTanhGeluWithBias", false, true, ops::Activation::kGeluTanh, true},
                      MlpCase{"PlainReluWithBias", false, true, ops::Activation::kRelu}),
    [](const auto& test) { return test.param.name; });

TEST(Mlp, NamesTheWidthThatCannotBeSplit) {
  run_tp({4, false}, [](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const std::string message =
        message_of<ConfigError>([&] { const Mlp mlp(ParameterScope(set), {.hidden = kMlpHidden, .width = 10}, tp); });
    expect_contains(message, "gate has 10 outputs, which cannot be split over tensor_model_parallel_size 4");
  });
}

// Each rank of sequence parallelism sees its tokens alone: gradients are parts, to be summed.
TEST(Norm, GradientsUnderSequenceParallelismAreParts) {
  for (const bool layer_norm : {false, true}) {
    const at::Tensor x = random_tensor({kMlpTokens, kMlpHidden}, 1), dy = random_tensor({kMlpTokens, kMlpHidden}, 2);
    FullTensors weights{{"weight", random_tensor({kMlpHidden}, 3)}};
    if (layer_norm) weights["bias"] = random_tensor({kMlpHidden}, 4);
    const Expected expected = evaluate(
        [&](const at::Tensor& in, const FullTensors& w) {
          if (layer_norm) return at::layer_norm(in, {kMlpHidden}, w.at("weight"), w.at("bias"), 1e-3);
          return in * (in.pow(2).mean(-1, true) + 1e-3).rsqrt() * w.at("weight");
        },
        x, weights, dy);
    run_all_layouts([&](const TensorParallel& tp) {
      ParameterSet set(at::kFloat, at::kCPU);
      const NormShape shape{
          .kind = layer_norm ? ops::NormKind::kLayer : ops::NormKind::kRms, .size = kMlpHidden, .epsilon = 1e-3};
      const Norm norm(ParameterScope(set), shape, tp.splits_tokens(), tp.rank());
      load(set, weights);
      const at::Tensor in = leaf(between_blocks(x, tp));
      const at::Tensor y = norm.forward(in);
      expect_close(y, between_blocks(expected.y, tp), "output");
      y.backward(between_blocks(dy, tp));
      expect_close(in.grad(), between_blocks(expected.dx, tp), "gradient of the input", 0,
                   testing::kClose * expected.dx.abs().max().item<double>());
      expect_grads(set, expected.grads, tp);
      EXPECT_EQ(set.all()[0]->sharded()[0].replica, tp.rank());
    });
  }
}

TEST(Norm, ZeroCenteredWeightsAreStoredWithoutTheOne) {
  ParameterSet set(at::kFloat, at::kCPU);
  const Norm norm(ParameterScope(set), {.size = kMlpHidden, .epsilon = 1e-3, .zero_centered = true}, false, 0);
  load(set, {{"weight", at::full({kMlpHidden}, 0.5)}});
  const at::Tensor x = random_tensor({kMlpTokens, kMlpHidden}, 1);
  expect_close(norm.forward(x), x * (x.pow(2).mean(-1, true) + 1e-3).rsqrt() * 1.5, "output");
}

}  // namespace
}  // namespace megalith::nn

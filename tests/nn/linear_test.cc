// Column- and row-parallel linear layers against y = x Wᵀ + b on the full weights.
#include "megalith/nn/tensor_parallel/linear.h"

#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kLinearTokens = 8, kLinearIn = 12;

at::Tensor full_linear(const at::Tensor& x, const FullTensors& w, const std::string& name) {
  const at::Tensor y = x.mm(w.at(name + ".weight").t());
  return w.contains(name + ".bias") ? y + w.at(name + ".bias") : y;
}

// A fused column layer: three parts, the last with rows that tp 4 has to pad (7 -> 8).
const std::vector<OutputPart> kParts{{"q", 8}, {"k", 4}, {"v", 7, 8}};

FullTensors column_weights(bool bias) {
  FullTensors w;
  uint64_t seed = 10;
  for (const OutputPart& part : kParts) {
    w[part.name + ".weight"] = random_tensor({part.rows, kLinearIn}, ++seed, 0.3);
    if (bias) w[part.name + ".bias"] = random_tensor({part.rows}, ++seed);
  }
  return w;
}

at::Tensor full_column(const at::Tensor& x, const FullTensors& w) {
  return at::cat({full_linear(x, w, "q"), full_linear(x, w, "k"), full_linear(x, w, "v")}, 1);
}

// This rank's columns of the full output: its share of every part, padding columns zero.
at::Tensor local_columns(const at::Tensor& full, const TensorParallel& tp) {
  std::vector<at::Tensor> columns;
  int64_t first = 0;
  for (const OutputPart& part : kParts) {
    const int64_t padded = part.padded_rows ? part.padded_rows : part.rows;
    const at::Tensor all = at::constant_pad_nd(full.narrow(1, first, part.rows), {0, padded - part.rows});
    columns.push_back(own_columns(all, tp));
    first += part.rows;
  }
  return at::cat(columns, 1);
}

// `before`: what is done to the parameters before the forward pass.
void test_column(bool bias, const std::function<void(ParameterSet&)>& before = {}) {
  const at::Tensor x = random_tensor({kLinearTokens, kLinearIn}, 1), dy = random_tensor({kLinearTokens, 19}, 2);
  const FullTensors weights = column_weights(bias);
  const Expected expected = evaluate(full_column, x, weights, dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer(ParameterScope(set), "qkv", kLinearIn, kParts, bias, Init::zeros(), tp);
    load(set, weights);
    if (before) before(set);
    const at::Tensor input = leaf(between_blocks(x, tp));
    const at::Tensor y = layer.forward(input);
    expect_close(y, local_columns(expected.y, tp), "output");
    y.backward(local_columns(dy, tp));
    expect_close(input.grad(), between_blocks(expected.dx, tp), "gradient of the input");
    expect_grads(set, expected.grads, tp);
  });
}

TEST(ColumnParallelLinear, EqualsTheFullLayer) { test_column(false); }
TEST(ColumnParallelLinear, EqualsTheFullLayerWithBias) { test_column(true); }
TEST(ColumnParallelLinear, WritesIntoMainGrad) { test_column(true, attach_main_grads); }

TEST(ColumnParallelLinear, LeavesTheBiasToOthers) {
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer(ParameterScope(set), "qkv", kLinearIn, kParts, true, Init::zeros(), tp);
    load(set, column_weights(true));
    const at::Tensor x = between_blocks(random_tensor({kLinearTokens, kLinearIn}, 1), tp);
    expect_close(layer.forward(x, /*add_bias=*/false) + layer.bias()->value, layer.forward(x), "without and with bias");
    EXPECT_FALSE(at::allclose(layer.forward(x, false), layer.forward(x)));
  });
}

TEST(ColumnParallelLinear, DescribesItsParts) {
  run_tp({4, false}, [](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer(ParameterScope(set).child("layers.3"), "qkv", kLinearIn, kParts, true,
                                     Init::zeros(), tp);
    EXPECT_EQ(layer.weight().spec.name, "layers.3.qkv.weight");
    EXPECT_TRUE(layer.weight().spec.split_over_tp);
    EXPECT_FALSE(layer.weight().spec.partial_grad_over_tp);
    EXPECT_EQ(layer.weight().value.sizes(), at::IntArrayRef({5, kLinearIn}));
    const auto parts = layer.weight().sharded();
    ASSERT_EQ(parts.size(), 3U);
    EXPECT_EQ(parts[2].name, "layers.3.v.weight");
    EXPECT_EQ(parts[2].global_shape, (std::vector<int64_t>{7, kLinearIn}));
    EXPECT_EQ(parts[2].offset, (std::vector<int64_t>{2 * tp.rank(), 0}));
    EXPECT_EQ(parts[2].local.sizes(), at::IntArrayRef({tp.rank() == 3 ? 1 : 2, kLinearIn}));
    EXPECT_EQ(parts[2].local.data_ptr(), layer.weight().value[3].data_ptr());
    EXPECT_EQ(parts[2].replica, 0);
  });
}

TEST(ColumnParallelLinear, RefusesRowsThatDoNotDivide) {
  run_tp({4, false}, [](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const std::string message = message_of<ConfigError>([&] {
      const ColumnParallelLinear layer(ParameterScope(set), "up", kLinearIn, {{"up", 6}}, false, Init::zeros(), tp);
    });
    expect_contains(message, "up has 6 outputs, which cannot be split over tensor_model_parallel_size 4");
  });
}

// ---- Row ----------------------------------------------------------------------------------------------------------

constexpr int64_t kLinearOut = 6;

FullTensors row_weights(bool bias) {
  FullTensors w{{"o.weight", random_tensor({kLinearOut, kLinearIn}, 11, 0.3)}};
  if (bias) w["o.bias"] = random_tensor({kLinearOut}, 12);
  return w;
}

void test_row(bool bias, bool with_residual, const std::function<void(ParameterSet&)>& before = {}) {
  const at::Tensor x = random_tensor({kLinearTokens, kLinearIn}, 1), dy = random_tensor({kLinearTokens, kLinearOut}, 2);
  const at::Tensor residual = random_tensor({kLinearTokens, kLinearOut}, 3);
  const FullTensors weights = row_weights(bias);
  const Expected expected = evaluate(
      [&](const at::Tensor& in, const FullTensors& w) {
        const at::Tensor y = full_linear(in, w, "o");
        return with_residual ? y + residual : y;
      },
      x, weights, dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const RowParallelLinear layer(ParameterScope(set), "o", kLinearIn, kLinearOut, bias, Init::zeros(), tp);
    load(set, weights);
    if (before) before(set);
    const at::Tensor input = leaf(own_columns(x, tp));
    const at::Tensor own_residual = with_residual ? leaf(between_blocks(residual, tp)) : at::Tensor();
    const at::Tensor y = layer.forward(input, own_residual);
    expect_close(y, between_blocks(expected.y, tp), "output");
    y.backward(between_blocks(dy, tp));
    expect_close(input.grad(), own_columns(expected.dx, tp), "gradient of the input");
    if (with_residual) expect_close(own_residual.grad(), between_blocks(dy, tp), "gradient of the residual");
    expect_grads(set, expected.grads, tp);
  });
}

TEST(RowParallelLinear, EqualsTheFullLayer) { test_row(false, false); }
TEST(RowParallelLinear, EqualsTheFullLayerWithBias) { test_row(true, false); }
TEST(RowParallelLinear, EqualsTheFullLayerWithResidual) { test_row(false, true); }
TEST(RowParallelLinear, EqualsTheFullLayerWithBiasAndResidual) { test_row(true, true); }
TEST(RowParallelLinear, WritesIntoMainGrad) { test_row(true, true, attach_main_grads); }

TEST(RowParallelLinear, BiasIsReplicated) {
  for (const Layout& layout : {Layout{2, false}, Layout{2, true}})
    run_tp(layout, [&](const TensorParallel& tp) {
      ParameterSet set(at::kFloat, at::kCPU);
      const RowParallelLinear layer(ParameterScope(set), "o", kLinearIn, kLinearOut, true, Init::zeros(), tp);
      const Parameter& bias = *set.find("o.bias");
      EXPECT_FALSE(bias.spec.split_over_tp);
      EXPECT_EQ(bias.spec.partial_grad_over_tp, layout.sequence_parallel);
      EXPECT_EQ(bias.sharded()[0].replica, tp.rank());  // rank 0 writes it to files
    });
}

TEST(RowParallelLinear, RefusesInputsThatDoNotDivide) {
  run_tp({4, false}, [](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const std::string message = message_of<ConfigError>(
        [&] { const RowParallelLinear layer(ParameterScope(set), "down", 10, kLinearOut, false, Init::zeros(), tp); });
    expect_contains(message, "down has 10 inputs, which cannot be split over tensor_model_parallel_size 4");
  });
}

// ---- Frozen weights (adapters) ------------------------------------------------------------------------------------

// Whether the graph of `out(input)` keeps the input's memory once its owner has let go of it.
template <typename Layer>
bool keeps_its_input(const Layer& layer, const at::Tensor& value, at::Tensor& out, const at::Tensor& source) {
  at::Tensor input = source + value;  // not a leaf: nobody else holds it
  const auto storage = input.storage().getWeakStorageImpl();
  out = layer.forward(input);
  input.reset();
  return !storage.expired();
}

TEST(FrozenWeights, GetNoGradientAndKeepNoInput) {
  const at::Tensor dy = random_tensor({kLinearTokens, kLinearOut}, 2);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear column(ParameterScope(set), "up", kLinearIn, {{"up", 8}}, false, Init::zeros(), tp);
    const RowParallelLinear row(ParameterScope(set), "down", kLinearIn, kLinearOut, false, Init::zeros(), tp);
    const FullTensors weights{{"up.weight", random_tensor({8, kLinearIn}, 1)},
                              {"down.weight", random_tensor({kLinearOut, kLinearIn}, 2)}};
    load(set, weights);
    const at::Tensor x = random_tensor({kLinearTokens, kLinearIn}, 3);
    for (const bool frozen : {false, true}) {
      SCOPED_TRACE(frozen ? "frozen" : "trained");
      for (const auto& parameter : set.all()) parameter->value.requires_grad_(!frozen);
      const at::Tensor to_column = leaf(at::zeros_like(between_blocks(x, tp)));
      const at::Tensor to_row = leaf(at::zeros_like(own_columns(x, tp)));
      at::Tensor y, z;
      EXPECT_EQ(keeps_its_input(column, between_blocks(x, tp), y, to_column), !frozen);
      EXPECT_EQ(keeps_its_input(row, own_columns(x, tp), z, to_row), !frozen);
      y.backward(at::ones_like(y));
      z.backward(between_blocks(dy, tp));
      const at::Tensor full = at::ones({kLinearTokens, 8}).mm(weights.at("up.weight"));
      expect_close(to_column.grad(), between_blocks(full, tp), "gradient of the column layer's input");
      expect_close(to_row.grad(), own_columns(dy.mm(weights.at("down.weight")), tp), "of the row layer's input");
      for (const auto& parameter : set.all()) {
        EXPECT_EQ(parameter->value.grad().defined(), !frozen) << parameter->spec.name;
        parameter->value.mutable_grad() = at::Tensor();
      }
    }
  });
}

// Only the weights are trained (the first layer after a frozen embedding): no gradient for the input, same for
// weights.
TEST(FrozenInputs, CostNoCollectiveAndGiveTheSameGradients) {
  const at::Tensor x = random_tensor({kLinearTokens, kLinearIn}, 1), dy = random_tensor({kLinearTokens, 19}, 2);
  const FullTensors weights = column_weights(true);
  const Expected expected = evaluate(full_column, x, weights, dy);
  for (const Layout& layout : all_layouts())
    testing::run_ranks(layout.tp, [&](const testing::Rank& r) {
      const TensorParallel tp{r.world.world(), layout.sequence_parallel};
      ParameterSet set(at::kFloat, at::kCPU);
      const ColumnParallelLinear layer(ParameterScope(set), "qkv", kLinearIn, kParts, true, Init::zeros(), tp);
      load(set, weights);
      layer.forward(between_blocks(x, tp).clone()).backward(local_columns(dy, tp));
      for (const std::string& operation : r.world.recent_operations())
        EXPECT_EQ(operation.find("'column linear backward'"), std::string::npos) << operation;
      expect_grads(set, expected.grads, tp);
    });
}

TEST(LinearLayers, RecordNothingWithoutGradients) {
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const RowParallelLinear layer(ParameterScope(set), "o", kLinearIn, kLinearOut, true, Init::zeros(), tp);
    load(set, row_weights(true));
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(
        layer.forward(own_columns(random_tensor({kLinearTokens, kLinearIn}, 1), tp).contiguous()).requires_grad());
  });
}

}  // namespace
}  // namespace megalith::nn

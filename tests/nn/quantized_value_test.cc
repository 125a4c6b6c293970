// Weights that are kept in 4 or 8 bits: every rank has the numbers that one rank has, and products with them are those
// with a dense weight of these numbers.
#include "megalith/nn/parameter/quantized_value.h"

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/fp8_value.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/quantized_slices.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

const std::vector<ops::QuantizedFormat> kFormats{ops::FourBitFormat{}, ops::FourBitFormat{.double_quantization = false},
                                                 ops::EightBitFormat{}};

// As below an adapter: weights are frozen.
void freeze(const ParameterSet& set) {
  for (const auto& parameter : set.all()) parameter->value.requires_grad_(false);
}

at::Tensor numbers_of(const Parameter& parameter) {
  const at::Tensor numbers = at::empty(parameter.value.sizes(), at::kFloat);
  read_quantized(parameter, 0, 0, numbers);
  return numbers;
}

// Rows that belong to the model, without padding.
int64_t parameter_rows(const ParameterSpec& spec) {
  int64_t rows = 0;
  for (const ParameterPart& part : spec.parts) rows += part.extent[0];
  return rows;
}

ParameterScope layer_scope(ParameterSet& set) { return ParameterScope(set).child("layers").child("0"); }

TEST(QuantizedValue, HoldsLinearWeightsOfLayers) {
  ParameterSet set(at::kFloat, at::kCPU, ops::FourBitFormat{});
  run_tp({1, false}, [&](const TensorParallel& tp) {
    const ColumnParallelLinear up(layer_scope(set), "up", 64, {{"up", 32}}, true, Init::normal(1), tp);
    const ReplicatedLinear latent(layer_scope(set), "latent", 64, {{"latent", 32}}, false, Init::normal(1), tp);
    const ColumnParallelLinear head(ParameterScope(set), "head", 64, {{"head", 32}}, false, Init::normal(1), tp, true);
    layer_scope(set).add({.name = "norm.weight", .init = Init::ones()}, {64});
    layer_scope(set).add({.name = "router.weight", .use = WeightUse::kRouter}, {8, 64});
  });
  std::vector<std::string> kept;
  for (const auto& parameter : set.all())
    if (parameter->attached.quantized) kept.push_back(parameter->spec.name);
  EXPECT_EQ(kept, (std::vector<std::string>{"layers.0.up.weight", "layers.0.latent.weight"}));
  Parameter& weight = *set.find("layers.0.up.weight");
  // It takes 4.127 bits per number and, as far as `value` goes, one number of memory: a NaN.
  EXPECT_EQ(weight.value.sizes(), (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(weight.value.storage().nbytes(), 4);
  EXPECT_TRUE(std::isnan(weight.value[3][4].item<float>()));
  EXPECT_THROW(numbers_of(weight), InternalError) << "it has not been loaded";
  initialize(set, 1);
  EXPECT_EQ(quantized_bytes(weight), 32 * 64 / 2 + 32 + 4);
  EXPECT_TRUE(at::isfinite(numbers_of(weight)).all().item<bool>());
  // Nothing else can be loaded into it, and it is exported as its numbers.
  expect_contains(message_of<ConfigError>([&] { loadable(weight); }), "quantization_bit");
  const SavedShards saved = saved_shards(weight);
  ASSERT_EQ(saved.parts.size(), 1);
  EXPECT_TRUE(saved.parts[0].data().equal(numbers_of(weight)));
}

TEST(QuantizedValue, TakesAByteAndAScalePerRowInEightBits) {
  ParameterSet set(at::kFloat, at::kCPU, ops::EightBitFormat{});
  run_tp({1, false}, [&](const TensorParallel& tp) {
    const ColumnParallelLinear up(layer_scope(set), "up", 64, {{"up", 32}}, false, Init::normal(1), tp);
  });
  initialize(set, 1);
  Parameter& weight = *set.find("layers.0.up.weight");
  EXPECT_EQ(quantized_bytes(weight), 32 * 64 + 32 * 4);
  expect_contains(message_of<ConfigError>([&] { loadable(weight); }), "is kept in 8 bits");
  EXPECT_TRUE(saved_shards(weight).parts.at(0).data().equal(numbers_of(weight)));
}

// Sizes at which blocks of 64 numbers begin inside rows and are cut by ranks.
TEST(QuantizedValue, NumbersDoNotDependOnTheLayout) {
  for (const int64_t width : {64, 96, 120})
    for (const ops::QuantizedFormat& format : kFormats) {
      std::map<std::string, at::Tensor> whole;
      for (const int ranks : {1, 2, 4}) {
        run_tp({ranks, false}, [&](const TensorParallel& tp) {
          ParameterSet set(at::kFloat, at::kCPU, format);
          const ColumnParallelLinear qkv(layer_scope(set), "qkv", width, {{"q", 48}, {"k", 24, 32}, {"v", 16}}, false,
                                         Init::normal(0.1), tp);
          const RowParallelLinear down(layer_scope(set), "down", width, 40, false, Init::normal(0.1), tp);
          initialize(set, 3);
          for (const auto& parameter : set.all())
            for (const auto& part : parameter->sharded(numbers_of(*parameter))) {
              if (ranks == 1)
                whole[part.name] = part.local.clone();
              else
                EXPECT_TRUE(part.local.equal(rectangle(whole.at(part.name), part)))
                    << part.name << ", width " << width << ", rank " << tp.rank() << " of " << ranks;
            }
          // Rows of padding are zeros.
          const at::Tensor all = numbers_of(*set.find("layers.0.qkv.weight"));
          const int64_t held = parameter_rows(set.find("layers.0.qkv.weight")->spec);
          EXPECT_EQ(all.abs().sum(1).gt(0).sum().item<int64_t>(), held);
        });
      }
    }
}

struct QuantizedResult {
  at::Tensor y, dx;
};

// Multiplies with the weight in `format` if `in_format`; otherwise with a dense one of the same numbers.
QuantizedResult multiply(int64_t in, int64_t out, int64_t tokens, const ops::QuantizedFormat& format, bool in_format) {
  QuantizedResult result;
  run_tp({1, false}, [&](const TensorParallel& tp) {
    ParameterSet kept(at::kFloat, at::kCPU, format), dense(at::kFloat, at::kCPU);
    const ColumnParallelLinear quantized(layer_scope(kept), "up", in, {{"up", out}}, true, Init::normal(0.1), tp);
    const ColumnParallelLinear in_fp32(layer_scope(dense), "up", in, {{"up", out}}, true, Init::normal(0.1), tp);
    initialize(kept, 5);
    freeze(kept);
    freeze(dense);
    {
      const at::NoGradGuard no_grad;
      kept.all()[1]->value.fill_(0.5);  // biases
      dense.all()[1]->value.fill_(0.5);
      dense.all()[0]->value.copy_(numbers_of(*kept.all()[0]));
    }
    const at::Tensor x = leaf(random_tensor({tokens, in}, 6));
    const at::Tensor y = (in_format ? quantized : in_fp32).forward(x);
    y.backward(random_tensor({tokens, out}, 7));
    result = {y.detach(), x.grad()};
  });
  return result;
}

TEST(QuantizedProduct, IsADenseOneWithTheSameNumbers) {
  for (const ops::QuantizedFormat& format : kFormats) {
    const QuantizedResult kept = multiply(96, 80, 24, format, true), dense = multiply(96, 80, 24, format, false);
    expect_identical(kept.y, dense.y, "output");
    expect_identical(kept.dx, dense.dx, "gradient of the input");
  }
}

// More numbers than a slice has.
TEST(QuantizedProduct, ReadsLargeWeightsInSlices) {
  EXPECT_EQ(quantized_slice(4096, 4096), 4096);
  EXPECT_EQ(quantized_slice(28672, 4096), 4096);
  EXPECT_EQ(quantized_slice(4160, 4096), 4096);
  EXPECT_EQ(quantized_slice(100, int64_t{1} << 30), 64);
  EXPECT_EQ(quantized_slice(5, 0), 5);
  for (const ops::QuantizedFormat& format : {kFormats.front(), kFormats.back()}) {
    const QuantizedResult kept = multiply(4160, 4096, 2, format, true), dense = multiply(4160, 4096, 2, format, false);
    expect_close(kept.y, dense.y, "output");
    expect_close(kept.dx, dense.dx, "gradient of the input");
  }
}

}  // namespace
}  // namespace megalith::nn

#include "megalith/ops/norm_rope/activation_internal.h"

#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

constexpr auto kActivations = {Activation::kSilu,      Activation::kGelu, Activation::kGeluTanh,
                               Activation::kQuickGelu, Activation::kRelu, Activation::kSquaredRelu};

// Rows that take vectors, that do not, and more of them than partial sums have parts.
struct Size {
  at::ScalarType dtype;
  int64_t rows, width;
  bool misaligned = false;
};
const std::vector<Size> kSizes{{at::kFloat, 3, 128},         {at::kFloat, 1, 5},      {at::kFloat, 70, 12, true},
                               {at::kFloat, 0, 8},           {at::kBFloat16, 3, 264}, {at::kBFloat16, 65, 7},
                               {at::kBFloat16, 2, 16, true}, {at::kHalf, 2, 40}};

ActivationRows shape_of(const Size& size, Activation activation) {
  return {size.dtype, size.rows, size.width, activation};
}
std::string name_of(const Size& size, Activation activation) {
  return fmt::format("activation {}, {} rows x {}{}", static_cast<int>(activation), size.rows, size.width,
                     size.misaligned ? ", misaligned" : "");
}

Tensors gated_cuda(const ActivationRows& shape, const Tensor& x, const Tensor& weights, const Tensor& dy,
                   bool misaligned, void* stream) {
  const Tensor y = unset({shape.rows, shape.width}, shape.dtype, misaligned);
  const Tensor dx = unset({shape.rows, 2 * shape.width}, shape.dtype, misaligned);
  const Tensor dw = weights.defined() ? unset({shape.rows}, at::kFloat) : Tensor();
  gated_forward_cuda(shape, in(x), floats(weights), out(y), stream);
  gated_backward_cuda(shape, in(x), floats(weights), in(dy), out(dx), floats(dw), stream);
  return {y, dx, dw};
}
Tensors gated_cpu(ActivationRows shape, const Tensor& x, const Tensor& dy) {
  shape.dtype = x.scalar_type();
  const Tensor y = unset({shape.rows, shape.width}, shape.dtype),
               dx = unset({shape.rows, 2 * shape.width}, shape.dtype);
  gated_forward_cpu(shape, in(x), out(y));
  gated_backward_cpu(shape, in(x), in(dy), out(dx));
  return {y, dx, {}};
}
// The CPU has no weights: its results in fp64, and then the weights.
Tensors weighted_cpu(const ActivationRows& shape, const Tensor& x, const Tensor& weights, const Tensor& dy) {
  const Tensor w = weights.to(at::kDouble).unsqueeze(1), grad = dy.to(at::kDouble);
  const Tensors plain = gated_cpu(shape, x.to(at::kDouble), (grad * w).contiguous());
  return {(plain[0] * w).to(shape.dtype), plain[1].to(shape.dtype), (plain[0] * grad).sum(1).to(at::kFloat)};
}

TEST(CudaActivation, GatedRows) {
  for (const Activation activation : kActivations)
    for (const Size& size : kSizes) {
      Random random;
      const ActivationRows shape = shape_of(size, activation);
      const Tensor x = random({size.rows, 2 * size.width}, size.dtype, size.misaligned);
      const Tensor dy = random({size.rows, size.width}, size.dtype, size.misaligned), w = random({size.rows});
      expect_twin([&](void* stream) { return gated_cuda(shape, x, {}, dy, size.misaligned, stream); },
                  [&] { return gated_cpu(shape, x, dy); }, "plain " + name_of(size, activation));
      expect_twin([&](void* stream) { return gated_cuda(shape, x, w, dy, size.misaligned, stream); },
                  [&] { return weighted_cpu(shape, x, w, dy); }, "weighted " + name_of(size, activation));
    }
}

TEST(CudaActivation, WideRowsWithWeights) {
  for (const auto dtype : kBothDtypes)
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      Random random;
      const Size size{dtype, 37, 4096};
      const ActivationRows shape = shape_of(size, activation);
      const Tensor x = random({37, 2 * 4096}, dtype), dy = random({37, 4096}, dtype), w = random({37}).abs();
      expect_twin([&](void* stream) { return gated_cuda(shape, x, w, dy, false, stream); },
                  [&] { return weighted_cpu(shape, x, w, dy); }, name_of(size, activation));
    }
}

// Also where the sigmoid is nearly 1, and far outside: a few units in the last place of fp32.
TEST(CudaActivation, Fp32IsExact) {
  const Tensor x = at::cat({at::linspace(-30, 30, 4000, at::kFloat), at::full({96}, -1e4), at::full({96}, 90.0)});
  const Tensor ones = at::ones({1, x.numel()}, at::kFloat), pairs = at::cat({x, at::ones_like(x)});
  for (const Activation activation : kActivations) {
    const ActivationRows shape{at::kFloat, 1, x.numel(), activation};
    const Tensors exact = gated_cpu(shape, pairs.to(at::kDouble), ones.to(at::kDouble));
    const Tensors actual = gated_cuda(shape, pairs, {}, ones, false, nullptr);
    for (size_t i = 0; i < 2; ++i) {
      const Tensor error = (actual[i].to(at::kDouble) - exact[i]).abs() / at::clamp(exact[i].abs(), 1.0);
      EXPECT_LE(error.max().item<double>(), 1e-6) << static_cast<int>(activation) << ", result " << i;
    }
  }
}

// One way of giving the bias: none, in fp32, in the dtype of the rows.
void expect_bias(const Size& size, Activation activation, bool with_bias, bool raw, bool add) {
  Random random;
  ActivationRows shape = shape_of(size, activation);
  const Tensor x = random({size.rows, size.width}, size.dtype, size.misaligned);
  const Tensor dy = random({size.rows, size.width}, size.dtype, size.misaligned);
  const Tensor bias = with_bias ? random({size.width}, raw ? size.dtype : at::kFloat) : Tensor();
  const Tensor start = random({size.width}), wide = with_bias ? bias.to(at::kFloat) : bias;
  const auto result = [&] { return unset({size.rows, size.width}, size.dtype, size.misaligned); };
  const auto cuda = [&](void* stream) {
    ActivationRows rows = shape;
    rows.raw_bias = raw;
    const Tensor y = result(), dx = result(), sums = with_bias ? start.clone() : Tensor();
    const Tensor workspace = unset({bias_backward_workspace_cuda(rows)}, at::kFloat);
    bias_forward_cuda(rows, in(x), in(bias), out(y), stream);
    bias_backward_cuda(rows, in(x), in(bias), in(dy), out(dx), out(sums), add, floats(workspace), stream);
    return Tensors{y, dx, sums};
  };
  const auto cpu = [&] {
    const Tensor y = result(), dx = result(), sums = with_bias ? unset({size.width}, at::kFloat) : Tensor();
    bias_forward_cpu(shape, in(x), in(wide), out(y));
    bias_backward_cpu(shape, in(x), in(wide), in(dy), out(dx), out(sums));
    return Tensors{y, dx, with_bias && add ? sums + start : sums};
  };
  expect_twin(cuda, cpu, fmt::format("bias {}, raw {}, add {}, {}", with_bias, raw, add, name_of(size, activation)));
}

TEST(CudaActivation, BiasedRows) {
  for (const Activation activation : kActivations)
    for (const Size& size : kSizes) {
      expect_bias(size, activation, false, false, false);
      expect_bias(size, activation, true, false, true);
      expect_bias(size, activation, true, true, false);
    }
}

}  // namespace
}  // namespace megalith::ops

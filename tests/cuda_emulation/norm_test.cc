#include "megalith/ops/norm_rope/norm_internal.h"

#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

struct Options {
  bool centered = false, rounded = false, delta = false, bias = false, raw = false, misaligned = false;
  float shift = 0;
};
// Each optional argument with and without.
const std::vector<Options> kOptions{{},
                                    {.rounded = true, .delta = true, .raw = true, .shift = 1},
                                    {.centered = true, .delta = true, .bias = true},
                                    {.centered = true, .bias = true, .raw = true},
                                    {.centered = true, .delta = true, .misaligned = true, .shift = 1},
                                    {.rounded = true, .shift = 1}};

struct Rows {
  at::ScalarType dtype;
  int64_t rows, width;
  at::ScalarType narrow = at::ScalarType::Undefined;  // type of y and delta; Undefined = dtype

  at::ScalarType branch() const { return narrow == at::ScalarType::Undefined ? dtype : narrow; }
};

class Norm {
 public:
  Norm(const Rows& size, const Options& options)
      : size_(size),
        options_(options),
        x_(matrix(size.dtype)),
        delta_(options.delta ? matrix(size.branch()) : Tensor()) {
    weight_ = random_({size.width}, options.raw ? size.branch() : at::kFloat);
    if (options.bias) bias_ = random_({size.width}, weight_.scalar_type());
  }

  void expect_same(const std::string& what) {
    // Rounded before it is scaled by a weight near 0, a value may differ by a unit of what it was: more than a unit of
    // the result.
    const double tolerance = options_.rounded && size_.dtype != at::kFloat ? 1e-3 : 1e-5;
    expect_twin([&](void* stream) { return forward(stream, true); }, [&] { return forward(nullptr, false); },
                "forward, " + what, tolerance);
    const Tensors kept = forward(nullptr, false);
    grad_y_ = matrix(size_.branch());
    residual_ = options_.delta ? matrix(size_.dtype) : Tensor();
    sums_ = random_({2, size_.width});
    expect_twin([&](void* stream) { return backward(kept, stream, true); },
                [&] { return backward(kept, nullptr, false); }, "backward, " + what);
  }

 private:
  Tensor matrix(at::ScalarType dtype) { return random_({size_.rows, size_.width}, dtype, options_.misaligned); }
  Tensor result(at::ScalarType dtype) const { return unset({size_.rows, size_.width}, dtype, options_.misaligned); }
  // As the CPU wants them: fp32, shifted.
  Tensor weight(bool cuda) const { return cuda ? weight_ : weight_.to(at::kFloat) + options_.shift; }
  Tensor bias(bool cuda) const { return cuda || !bias_.defined() ? bias_ : bias_.to(at::kFloat); }
  NormRows shape() const {
    return {size_.dtype,      size_.rows,   size_.width,    options_.centered,
            options_.rounded, options_.raw, options_.shift, size_.narrow};
  }

  Tensors forward(void* stream, bool cuda) const {
    const Tensor y = result(size_.branch()), sum = options_.delta ? result(size_.dtype) : Tensor();
    const Tensor rstd = unset({size_.rows}, at::kFloat);
    const Tensor mean = options_.centered ? unset({size_.rows}, at::kFloat) : Tensor();
    const Tensor w = weight(cuda), b = bias(cuda);
    const NormForward args{in(x_), in(delta_), out(sum), in(w), in(b), 1e-5, out(y), out(mean), out(rstd)};
    cuda ? norm_forward_cuda(shape(), args, stream) : norm_forward_cpu(shape(), args);
    return {y, sum, mean, rstd};
  }

  // CUDA gives the gradients of raw weights in their type; to those of others that are fp32 it adds. The CPU does
  // neither.
  Tensors backward(const Tensors& kept, void* stream, bool cuda) const {
    const Tensor grad_x = result(size_.dtype), w = weight(cuda);
    const bool both = options_.delta && size_.branch() != size_.dtype;
    const Tensor grad_delta = both ? result(size_.branch()) : Tensor();
    const auto grad_of = [&](int64_t which) {
      return cuda && options_.raw ? unset({size_.width}, size_.branch()) : sums_[which].clone();
    };
    const Tensor weights = grad_of(0), biases = options_.bias ? grad_of(1) : Tensor();
    NormBackward args{in(x_), in(grad_y_), in(residual_), in(w), in(kept[2]), in(kept[3])};
    args.grad_x = out(grad_x);
    args.grad_delta = out(grad_delta);
    args.grad_weight = out(weights);
    args.grad_bias = out(biases);
    if (!cuda) {
      norm_backward_cpu(shape(), args);
      const auto as_cuda = [&](const Tensor& grad, int64_t which) {
        if (!grad.defined()) return grad;
        return options_.raw ? grad.to(size_.branch()) : grad + sums_[which];
      };
      return {grad_x, as_cuda(weights, 0), as_cuda(biases, 1), grad_delta};
    }
    args.grad_weight_dtype = args.grad_bias_dtype = weights.scalar_type();
    args.add_weight = args.add_bias = !options_.raw;
    const Tensor workspace = unset({norm_backward_workspace_cuda(shape())}, at::kFloat);
    norm_backward_cuda(shape(), args, floats(workspace), stream);
    return {grad_x, weights, biases, grad_delta};
  }

  const Rows size_;
  const Options options_;
  Random random_;
  const Tensor x_, delta_;
  Tensor weight_, bias_, grad_y_, residual_, sums_;
};

// Numbers of kOptions. At the edges of a shape's widths two are enough, which between them have every argument; the
// shape's other widths have the rest.
const std::vector<size_t> kAll{0, 1, 2, 3, 4, 5}, kRoundedResidual{1}, kCenteredBias{3}, kBoth{1, 3};

void expect_same(const std::vector<Rows>& sizes, const std::vector<size_t>& numbers = kAll) {
  for (const Rows& size : sizes)
    for (const size_t i : numbers)
      Norm(size, kOptions[i]).expect_same(fmt::format("{} rows x {}, options {}", size.rows, size.width, i));
}

// One to four vectors per thread, the last three filled to the last thread.
TEST(CudaNorm, WarpsWithRows) {
  expect_same({{at::kFloat, 19, 100}, {at::kFloat, 3, 256}, {at::kFloat, 9, 384}, {at::kFloat, 1, 512}});
  expect_same({{at::kBFloat16, 19, 200}, {at::kBFloat16, 3, 512}, {at::kBFloat16, 9, 768}, {at::kHalf, 9, 1024}});
}
TEST(CudaNorm, BlocksWithRows) {
  expect_same({{at::kFloat, 19, 1000}, {at::kBFloat16, 19, 2000}});
  // As many threads as a shape has at most: forward with two vectors each, backward with one.
  expect_same({{at::kFloat, 9, 2048}, {at::kHalf, 9, 4096}}, kBoth);
  // Forward four vectors each, backward two with as many threads as there are (all options: ManyRows).
  expect_same({{at::kFloat, 9, 4096}, {at::kBFloat16, 9, 8192}}, kBoth);
}
// More than a block copies ahead: a ring of three rows, for warps and for blocks, and of two.
TEST(CudaNorm, ManyRows) { expect_same({{at::kBFloat16, 150, 72}, {at::kBFloat16, 45, 1040}, {at::kFloat, 30, 2056}}); }
// Single elements, one to four per thread.
TEST(CudaNorm, OddWidths) {
  expect_same({{at::kFloat, 19, 5}, {at::kFloat, 9, 301}, {at::kBFloat16, 9, 601}, {at::kBFloat16, 9, 1101}});
  expect_same({{at::kHalf, 9, 601}}, kBoth);
}
// No ring. The widest rows of four and of eight vectors per thread, and the narrowest; eight elements per thread.
TEST(CudaNorm, WidestRows) {
  expect_same({{at::kFloat, 2, 32768}, {at::kBFloat16, 9, 16384}}, kRoundedResidual);
  expect_same({{at::kFloat, 2, 8196}, {at::kBFloat16, 9, 8200}}, kCenteredBias);
  expect_same({{at::kFloat, 1, 8191}}, kBoth);
}
// A residual stream in fp32 beside branches in 16 bits: vectors of 8 bytes, in warps and blocks, with the ring of three
// rows and of two, without it, and element by element.
TEST(CudaNorm, WideStream) {
  expect_same({{at::kFloat, 19, 100, at::kBFloat16}, {at::kFloat, 150, 1040, at::kBFloat16}});
  expect_same({{at::kFloat, 30, 2056, at::kBFloat16}, {at::kFloat, 9, 512, at::kHalf}}, kBoth);
  expect_same({{at::kFloat, 9, 8192, at::kBFloat16}, {at::kFloat, 9, 301, at::kBFloat16}}, kBoth);
}
TEST(CudaNorm, NoRows) { expect_same({{at::kFloat, 0, 64}}); }

}  // namespace
}  // namespace megalith::ops

// A product with a weight in 4 or 8 bits (parameter/quantized_value.h), which is frozen: y = x Wᵀ and dx = dy W.
// Numbers are made in the dtype of the activations, a slice at a time, and multiplied by the dense kernels:
//
//   forward    slices of rows of W      each gives columns of y
//   backward   slices of columns of W   each gives columns of dx
//
// So no result is a sum over slices, which would be rounded between them, and no activation depends on how many there
// are. A slice of 32 MiB in bf16 is large enough for any kernel; only one exists at a time.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "megalith/nn/parameter/quantized_value.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/nn/tensor_parallel/quantized_slices.h"

namespace megalith::nn {

namespace {

class QuantizedProduct final : public Product {
 public:
  explicit QuantizedProduct(Parameter& weight) : weight_(weight) {}

  std::vector<at::Tensor> weights() const override { return {weight_.value}; }

  at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& /*saved*/) const override {
    const int64_t outputs = weight_.value.size(0), inputs = weight_.value.size(1);
    const int64_t rows = quantized_slice(outputs, inputs);
    if (rows == outputs) return ops::gemm(x, numbers(0, outputs, 0, inputs, x).t(), added, weight_.kernels());
    const at::Tensor y = at::empty({x.size(0), outputs}, x.options());
    for (int64_t first = 0; first < outputs; first += rows) {
      const int64_t count = std::min(rows, outputs - first);
      ops::gemm_out(y.narrow(1, first, count), x, numbers(first, count, 0, inputs, x).t(), weight_.kernels());
    }
    add_addends_(y, added);
    return y;
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& /*saved*/) const override {
    const int64_t outputs = weight_.value.size(0), inputs = weight_.value.size(1);
    const int64_t columns = quantized_slice(inputs, outputs);
    if (columns == inputs) return ops::gemm(dy.dy, numbers(0, outputs, 0, inputs, dy.dy), {}, weight_.kernels());
    const at::Tensor dx = at::empty({dy.dy.size(0), inputs}, dy.dy.options());
    for (int64_t first = 0; first < inputs; first += columns) {
      const int64_t count = std::min(columns, inputs - first);
      ops::gemm_out(dx.narrow(1, first, count), dy.dy, numbers(0, outputs, first, count, dy.dy), weight_.kernels());
    }
    return dx;
  }

  // The weight is frozen.
  std::vector<at::Tensor> grad_weights(const OutputGrad& /*dy*/, const Saved& /*saved*/,
                                       const MakeInput& /*make_x*/) const override {
    return {at::Tensor()};
  }

 private:
  // Returns a rectangle of the weight, [rows, columns], in the dtype of `like`.
  at::Tensor numbers(int64_t row, int64_t rows, int64_t column, int64_t columns, const at::Tensor& like) const {
    const at::Tensor slice = at::empty({rows, columns}, like.options());
    read_quantized(weight_, row, column, slice);
    return slice;
  }

  Parameter& weight_;
};

}  // namespace

ProductPtr quantized_product(Parameter& weight) { return std::make_shared<QuantizedProduct>(weight); }

}  // namespace megalith::nn

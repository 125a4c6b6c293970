// Grouped GEMM with autograd pieces: the stacked weight [n · o, i] is viewed as [n, o, i], and group g multiplies
// counts[g] consecutive rows. On CUDA the counts may live on the device, so that nothing here reads them on the host. A
// low-rank update has stacked A's and B's and uses the same kernels, never in fp8.
#include "megalith/nn/moe/grouped_product.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/gradient_writer.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/ops/gemm/grouped_fp8.h"

namespace megalith::nn {

namespace {

// Views [n · o, i] as [n, o, i].
at::Tensor group_matrices(const at::Tensor& stacked, const ops::GroupCounts& counts) {
  return stacked.view({counts.groups(), -1, stacked.size(1)});
}

// DenseProduct for groups of rows. A deferred weight gradient keeps its own copy of the counts, which are shared.
class GroupedProduct : public Product {
 public:
  GroupedProduct(Parameter& weight, ops::GroupCounts counts) : weight_(weight), counts_(std::move(counts)) {}

  std::vector<at::Tensor> weights() const override { return {weight_.value}; }

  at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& saved) const override {
    check(!added.bias.defined() && !added.residual.defined(), "a grouped product with {} does not take addends",
          weight_.spec.name);
    if (weight_.value.requires_grad()) saved.x = x;
    saved.own = {weight_.value};
    return multiply(x, group_matrices(weight_.value, counts_));
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const override {
    return multiply_grad(dy.dy, group_matrices(saved.own[0], counts_));
  }

  std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                       const MakeInput& make_x) const override {
    if (!weight_.value.requires_grad()) return {at::Tensor()};
    return {weight_.grad.now_or_later(
        [&weight = weight_, counts = counts_, dy = dy.dy, x = input_of(saved, make_x, weight_)] {
          const at::Tensor input = x();
          const GradientWriter grad(weight);
          ops::grouped_weight_grad(group_matrices(grad.into(), counts), dy, input, counts, grad.beta());
          return grad.done();
        })};
  }

 protected:
  const ops::GroupCounts& counts() const { return counts_; }

 private:
  // x_n w_nᵀ and dy_n w_n of every group, w [n, o, i].
  virtual at::Tensor multiply(const at::Tensor& x, const at::Tensor& w) const {
    return ops::grouped_mm_transposed(x, w, counts_);
  }
  virtual at::Tensor multiply_grad(const at::Tensor& dy, const at::Tensor& w) const {
    return ops::grouped_mm(dy, w, counts_);
  }

  Parameter& weight_;
  const ops::GroupCounts counts_;
};

// The same with factors cast to fp8. Each cast serves one product: x is kept as it is, for the weight gradient, and the
// weight is cast again in backward, in the other order.
class GroupedFp8Product final : public GroupedProduct {
 public:
  using GroupedProduct::GroupedProduct;

 private:
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& w) const override {
    return ops::grouped_fp8_mm(ops::to_fp8_rows(x), ops::to_fp8_rows(w), counts(), x.scalar_type(), /*fast=*/true);
  }
  at::Tensor multiply_grad(const at::Tensor& dy, const at::Tensor& w) const override {
    return ops::grouped_fp8_mm(ops::to_fp8_rows(dy), ops::to_fp8_columns(w), counts(), dy.scalar_type(),
                               /*fast=*/false);
  }
};

// A and B of every group: MatrixFactors of low_rank.cc with grouped products. A part's B's of all experts are stacked,
// so that [n, rows, r] is a view for every part.
class GroupedFactors final : public LowRankFactors {
 public:
  GroupedFactors(const LowRank& update, ops::GroupCounts counts) : update_(update), counts_(std::move(counts)) {}

  at::Tensor hidden(const at::Tensor& x) const override {
    return ops::grouped_mm_transposed(x, a_matrices(x), counts_);
  }

  void add_output(const at::Tensor& hidden, const at::Tensor& y) const override {
    const at::Tensor b = b_like(y);
    for (const LowRank::Part& part : update_.parts)
      y.narrow(1, part.out, part.rows)
          .add_(ops::grouped_mm_transposed(hidden.narrow(1, part.a, update_.rank), part_matrices(b, part), counts_),
                part.scale);
  }

  at::Tensor hidden_grad(const at::Tensor& dy) const override {
    const at::Tensor b = b_like(dy);
    std::vector<at::Tensor> columns;
    for (size_t i = 0; i < update_.parts.size(); ++i) {
      const LowRank::Part& part = update_.parts[i];
      const at::Tensor grad =
          ops::grouped_mm(dy.narrow(1, part.out, part.rows), part_matrices(b, part), counts_).mul_(part.scale);
      // Parts of one module share their columns: their gradients add up.
      if (update_.opens_module(i))
        columns.push_back(grad);
      else
        columns.back().add_(grad);
    }
    return columns.size() == 1 ? columns[0] : at::cat(columns, 1);
  }

  void add_input_grad(const at::Tensor& hidden_grad, const at::Tensor& mask, const at::Tensor& dx) const override {
    add_masked(dx, ops::grouped_mm(hidden_grad, a_matrices(hidden_grad), counts_), mask);
  }

  at::Tensor a_grad(const at::Tensor& hidden_grad, const at::Tensor& in) const override {
    const GradientWriter grad(*update_.a);
    ops::grouped_weight_grad(group_matrices(grad.into(), counts_), hidden_grad, in, counts_, grad.beta());
    return grad.done();
  }

  at::Tensor b_grad(const at::Tensor& dy, const at::Tensor& hidden) const override {
    const GradientWriter grad(*update_.b);
    for (const LowRank::Part& part : update_.parts)
      ops::grouped_weight_grad(part_matrices(grad.into(), part), dy.narrow(1, part.out, part.rows),
                               hidden.narrow(1, part.a, update_.rank) * part.scale, counts_, grad.beta());
    return grad.done();
  }

 private:
  at::Tensor a_matrices(const at::Tensor& like) const {
    return group_matrices(update_.a->value.detach().to(like.scalar_type()), counts_);
  }
  at::Tensor b_like(const at::Tensor& like) const { return update_.b->value.detach().to(like.scalar_type()); }
  // Returns the matrices of one part of B (or of its gradient), [n, rows, r].
  at::Tensor part_matrices(const at::Tensor& b, const LowRank::Part& part) const {
    const auto n = counts_.groups();
    return b.narrow(0, part.b, n * part.rows).view({n, part.rows, b.size(1)});
  }

  const LowRank& update_;
  const ops::GroupCounts counts_;
};

}  // namespace

ProductPtr make_grouped_product(Parameter& weight, const ops::GroupCounts& counts) {
  ProductPtr product;
  if (weight.attached.grouped_fp8)
    product = std::make_shared<GroupedFp8Product>(weight, counts);
  else
    product = std::make_shared<GroupedProduct>(weight, counts);
  const LowRank* update = active_update(weight);
  if (update == nullptr) return product;
  // `split`: no other rank has the same rows and the same part of the experts.
  return low_rank_product(std::move(product), *update, std::make_shared<GroupedFactors>(*update, counts),
                          {.split = true});
}

void attach_grouped_fp8(Parameter& weight, int64_t groups, const std::optional<ops::Fp8Recipe>& recipe) {
  weight.attached.grouped_fp8 = recipe && ops::fits_fp8(weight.value.size(0) / groups, weight.value.size(1)) &&
                                ops::has_grouped_fp8(weight.value.device());
}

}  // namespace megalith::nn

// The three products of a step take most of the time. Single matrices go through the owner's plans (gemm.h), several of
// one shape through ATen's batched product, so that hundreds of small experts do not cost a launch each.
//
// Where blocks are spread over ranks, only A is summed: B and the last product need no other rank's columns. A is
// summed in fp32, so that the result does not depend on the number of ranks by more than the products themselves.
#include "megalith/ops/update/newton_schulz.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"

namespace megalith::ops {

namespace {

// Computes into = beta · into + alpha · left right for all matrices of [k, …]. beta = 0 does not read `into`.
void add_products(const at::Tensor& into, const at::Tensor& left, const at::Tensor& right, double beta, double alpha,
                  const GemmKernels& kernels) {
  const bool one_type = into.scalar_type() == left.scalar_type();
  if (into.size(0) > 1 && one_type) {
    at::Tensor out = into;
    out.baddbmm_(left, right, beta, alpha);  // beta = 0 ignores what was there, also NaN
    return;
  }
  for (int64_t i = 0; i < into.size(0); ++i) add_gemm(into[i], left[i], right[i], beta, alpha, kernels);
}

// Returns X Xᵀ [k, m, m], summed over the ranks of `group` unless that is nullptr.
at::Tensor gram(const at::Tensor& x, const comm::Group* group, const GemmKernels& kernels) {
  const bool summed = group != nullptr && group->size() > 1;
  const at::Tensor a =
      at::empty({x.size(0), x.size(1), x.size(1)}, summed ? x.options().dtype(at::kFloat) : x.options());
  add_products(a, x, x.transpose(1, 2), 0, 1, kernels);
  if (!summed) return a;
  group->all_reduce(a, comm::ReduceOp::kSum, "squares of matrices");
  return a.to(x.scalar_type());
}

// Norms of the whole matrices, [k, 1, 1].
at::Tensor norms(const at::Tensor& x, const comm::Group* group) {
  if (group == nullptr || group->size() == 1) return at::linalg_vector_norm(x, 2, {1, 2}, /*keepdim=*/true);
  const at::Tensor squares = x.square().sum({1, 2}, /*keepdim=*/true);
  group->all_reduce(squares, comm::ReduceOp::kSum, "norms of matrices");
  return squares.sqrt();
}

at::Tensor iterate(const at::Tensor& matrices, bool transposed, const NewtonSchulz& how, const comm::Group* group,
                   const GemmKernels& kernels) {
  check(matrices.dim() == 3 && matrices.scalar_type() == at::kFloat,
        "matrices to orthogonalize must be fp32 [k, r, c]");
  const at::Tensor wide = transposed ? matrices.transpose(1, 2) : matrices;
  at::Tensor x = (wide / norms(wide, group).clamp_min_(how.epsilon)).to(how.dtype).contiguous();
  for (const NewtonSchulzStep& step : how.steps) {
    const at::Tensor a = gram(x, group, kernels), b = a.clone();
    add_products(b, a, a, step.b, step.c, kernels);
    const at::Tensor next = x.clone();
    add_products(next, b, x, step.a, 1, kernels);
    x = next;
  }
  x = x.to(at::kFloat);
  return (transposed ? x.transpose(1, 2) : x).contiguous();
}

}  // namespace

at::Tensor orthogonalize(const at::Tensor& matrices, const NewtonSchulz& how, const GemmKernels& kernels) {
  return iterate(matrices, matrices.size(1) > matrices.size(2), how, nullptr, kernels);
}

// The cut dimension must be the one that A sums over, whichever side is the shorter one.
at::Tensor orthogonalize_blocks(const at::Tensor& blocks, int64_t dim, const NewtonSchulz& how,
                                const comm::Group& group, const GemmKernels& kernels) {
  check(dim == 0 || dim == 1, "a matrix is cut along dimension 0 or 1, not {}", dim);
  return iterate(blocks, dim == 0, how, &group, kernels);
}

}  // namespace megalith::ops

// The randomized SVD is that of torch.svd_lowrank with q = rank: a basis Q of the range of W is found by power
// iterations with a QR decomposition after each product, and the SVD of the small matrix Qᵀ·W gives that of W.
#include "megalith/peft/principal_part.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>

#include "megalith/base/error.h"

namespace megalith::peft {

namespace {

at::Tensor orthonormal(const at::Tensor& columns) { return std::get<0>(at::linalg_qr(columns)); }

struct Svd {
  at::Tensor u, s, vh;  // [o, k], [k], [k, i]
};

Svd exact(const at::Tensor& weight) {
  auto [u, s, vh] = at::linalg_svd(weight, /*full_matrices=*/false);
  return {u, s, vh};
}

Svd randomized(const at::Tensor& weight, int iterations, const at::Tensor& random) {
  const bool wide = weight.size(0) < weight.size(1);
  const at::Tensor tall = wide ? weight.t() : weight;
  at::Tensor q = orthonormal(tall.mm(random));
  for (int i = 0; i < iterations; ++i) {
    q = orthonormal(tall.t().mm(q));
    q = orthonormal(tall.mm(q));
  }
  const Svd small = exact(q.t().mm(tall));
  const at::Tensor left = q.mm(small.u);
  if (wide) return {small.vh.t(), small.s, left.t()};
  return {left, small.s, small.vh};
}

}  // namespace

PrincipalPart principal_part(const at::Tensor& weight, int64_t rank, double scale, int iterations,
                             const at::Tensor& random) {
  const at::NoGradGuard no_grad;
  check(rank <= std::min(weight.size(0), weight.size(1)), "a matrix [{}, {}] has no {} singular values", weight.size(0),
        weight.size(1), rank);
  const at::Tensor host = weight.to(at::TensorOptions(at::kCPU).dtype(at::kFloat));
  const Svd svd = iterations < 0 ? exact(host) : randomized(host, iterations, random);
  const at::Tensor root = svd.s.narrow(0, 0, rank).div(scale).sqrt_();
  return {root.unsqueeze(1).mul(svd.vh.narrow(0, 0, rank)), svd.u.narrow(1, 0, rank).mul(root)};
}

}  // namespace megalith::peft

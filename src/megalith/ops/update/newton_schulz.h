// Newton-Schulz iteration: moves the singular values of matrices close to 1 and keeps their singular vectors, with
// matrix products alone. Muon (Jordan et al., 2024) does this to its momentum.
//
//   X = M / ‖M‖      each step:  A = X Xᵀ,  B = b A + c A²,  X ← a X + B X
//
// Matrices with more rows than columns are transposed first, so that A is the smaller of the two possible squares. A
// step costs 4 m² n + 2 m³ operations, where m ≤ n are the sides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/ops/gemm/gemm.h"

namespace megalith::ops {

// The coefficients of one step, which maps a singular value s to a s + b s³ + c s⁵.
struct NewtonSchulzStep {
  double a = 0, b = 0, c = 0;
};

// How matrices are orthogonalized.
struct NewtonSchulz {
  std::vector<NewtonSchulzStep> steps;
  at::ScalarType dtype = at::kBFloat16;  // X and the products have it
  double epsilon = 1e-7;                 // a norm below this counts as this
};

// Returns `matrices` [k, r, c] in fp32, each orthogonalized: fp32 [k, r, c]. A matrix of zeros stays zero. Equal
// matrices on equal devices give equal bits whatever `kernels` were measured, if kernels.choice is kFixed.
at::Tensor orthogonalize(const at::Tensor& matrices, const NewtonSchulz& how, const GemmKernels& kernels = {});

// Does the same to matrices that the ranks of `group` hold in equal blocks [k, r, c], cut along dimension `dim` of the
// whole matrix (0: rows, 1: columns), and returns this rank's blocks of the results. Per step it sums squares of the
// other side over the ranks, instead of gathering the matrices. That is slower than gathering where the other side is
// the longer one. All ranks of the group call it.
at::Tensor orthogonalize_blocks(const at::Tensor& blocks, int64_t dim, const NewtonSchulz& how,
                                const comm::Group& group, const GemmKernels& kernels = {});

// Returns the operations of one step on a rank that holds `n` columns of matrices with m rows, where A is m x m.
constexpr double newton_schulz_flop(double m, double n) { return 4 * m * m * n + 2 * m * m * m; }

}  // namespace megalith::ops

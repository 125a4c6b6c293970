// The principal singular parts of a matrix, as the factors of an adapter (PiSSA, Meng et al., 2024).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::peft {

// Legend: o outputs, i inputs, r rank.
struct PrincipalPart {
  at::Tensor a;  // [r, i] = √(S/s)·Vᵀ
  at::Tensor b;  // [o, r] = U·√(S/s)
};

// Returns A and B such that s·B·A is the best approximation of `weight` [o, i] of rank `rank`, as peft computes it:
// from the SVD U·S·Vᵀ of the matrix in fp32, on the host. `random` [min(o, i), r] holds samples of N(0, 1) for a
// randomized SVD with so many `iterations` (Halko et al., 2011, algorithm 4.4: peft's pissa_niter_N); iterations -1
// ignores it and computes the exact SVD, which takes min(o, i) / r times as long.
PrincipalPart principal_part(const at::Tensor& weight, int64_t rank, double scale, int iterations,
                             const at::Tensor& random);

}  // namespace megalith::peft

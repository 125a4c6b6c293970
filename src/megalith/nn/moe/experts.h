// Experts: the feed-forward blocks of a rank, all in one call.
//
// Legend: n experts of this rank, r rows, h hidden, f width.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/grouped_gemm.h"

namespace megalith::nn {

// The experts that a rank holds, and its part of each.
struct ExpertShare {
  int64_t first = 0, count = 0;  // experts [first, first + count)
  int etp = 1, etp_rank = 0;     // their width is split over etp ranks
};

// Its parameters are gate_up [n · 2f/etp, h] (up [n · f/etp, h] if not gated) and down [n · h, f/etp]. Each stacks the
// matrices of the experts, which are separate ParameterParts ("3.gate.weight").
class Experts {
 public:
  // `fp8`: std::nullopt = products are in the dtype of the rows.
  Experts(const ParameterScope& scope, const MoeShape& shape, const ExpertShare& share, bool recompute_activation,
          const std::optional<ops::Fp8Recipe>& fp8);

  // rows [r, h], counts[i] of them for expert i of this rank -> [r, h]; with etp > 1 this rank's part of a sum. If
  // `local` has weights, each row of the result is multiplied by its weight. That happens before the down projection,
  // so that backward does not need the down projection's output.
  at::Tensor forward(const at::Tensor& rows, const ops::GroupCounts& counts, const LocalRows& local = {}) const;

 private:
  bool gated_;
  ops::Activation activation_;
  bool recompute_activation_;
  int64_t count_;
  Parameter* up_;
  Parameter* down_;
};

// Multiplies each group of rows of x [r, i] by its own matrix [o, i] -> [r, o]. `weight` stacks the matrices. With
// `make_x`, which recomputes x from tensors that are kept anyway, x is not kept.
at::Tensor grouped_linear(const at::Tensor& x, Parameter& weight, const ops::GroupCounts& counts,
                          std::function<at::Tensor()> make_x = {});

}  // namespace megalith::nn

// Experts: the feed-forward blocks of a rank, all in one call.
//
// Legend: n experts of this rank, r rows, h hidden, f width.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/ops/gemm/grouped_gemm.h"

namespace megalith::nn {

// Which experts a rank holds, and which part of each.
struct ExpertShare {
  int64_t first = 0, count = 0;  // experts [first, first + count)
  int etp = 1, etp_rank = 0;     // their width is split over etp ranks
};

// Parameters gate_up [n · 2f/etp, h] (plain: up [n · f/etp, h]) and down [n · h, f/etp]: the matrices of the experts
// one below the other, each a part of its own ("3.gate.weight").
class Experts {
 public:
  Experts(const ParameterScope& scope, const MoeShape& shape, const ExpertShare& share, bool recompute_activation);

  // rows [r, h], counts[i] of them for expert i of this rank -> [r, h]: with etp > 1 this rank's part of a sum. Where
  // `local` has weights, each row of the result times its own: they are applied before the projection down, so that
  // nothing of what comes behind it is kept.
  at::Tensor forward(const at::Tensor& rows, const ops::GroupCounts& counts, const LocalRows& local = {}) const;

 private:
  bool gated_;
  ops::Activation activation_;
  bool recompute_activation_;
  int64_t count_;
  Parameter* up_;
  Parameter* down_;
};

// x [r, i], one matrix [o, i] for each group of rows, `weight` holding them one below the other -> [r, o]. With
// `make_x`, which gives x again from what is kept anyway, x is not kept.
at::Tensor grouped_linear(const at::Tensor& x, Parameter& weight, const ops::GroupCounts& counts,
                          std::function<at::Tensor()> make_x = {});

}  // namespace megalith::nn

// MoeLayer: the feed-forward block of a mixture of experts: router, experts over the ranks, shared experts.
//
// Legend: t tokens of this rank, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "megalith/nn/block_part.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/experts.h"
#include "megalith/nn/moe/router.h"

namespace megalith::nn {

// Parameters: router, experts, and where there are shared ones shared (an Mlp) and shared_gate.
//
// Tokens are split over tensor-parallel ranks between blocks (sequence parallelism): every token is routed once.
// Without it, with tp > 1, all ranks route the same tokens, which is right but wasteful, and refused in training:
// gradients would count them tp times.
class MoeLayer : public BlockPart {
 public:
  // Throws ConfigError for sizes that the ranks do not divide. `context` outlives it.
  MoeLayer(const ParameterScope& scope, const MoeShape& shape, const MoeOptions& options, const TensorParallel& tp,
           parallel::ParallelContext& context);

  // x [t, h] -> residual + what the chosen and the shared experts make of it. `residual` undefined: none. Collective
  // over the ranks that share the experts.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

  const Router* router() const override { return &router_; }

 private:
  at::Tensor shared(const at::Tensor& x, const at::Tensor& residual, bool training) const;

  MoeOptions options_;
  TensorParallel tp_;
  ExpertRanks ranks_;
  Router router_;
  Experts experts_;
  std::optional<Mlp> shared_;
  Parameter* shared_gate_ = nullptr;  // [1, h]
};

// The shared experts, which are one MLP. Its activation is kept: MoeOptions::recompute_shared computes all of them
// twice.
MlpShape shared_shape(const MoeShape& shape);

// What it needs, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const MoeShape& shape,
                                              const MoeOptions& options);

}  // namespace megalith::nn

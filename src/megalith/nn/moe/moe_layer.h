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

// Its parameters are router, experts and, with shared experts, shared (an Mlp) and shared_gate.
//
// With sequence parallelism, tokens are split over tensor-parallel ranks between blocks, and every token is routed
// once. Without it, with tp > 1, all ranks route the same tokens: the result is correct but the work is redundant, and
// training refuses it because gradients would count each token tp times.
class MoeLayer : public BlockPart {
 public:
  // Throws ConfigError if the sizes cannot be split over the ranks. `context` outlives it.
  MoeLayer(const ParameterScope& scope, const MoeShape& shape, const MoeOptions& options, const TensorParallel& tp,
           parallel::ParallelContext& context);

  // x [t, h] -> residual + outputs of the routed and shared experts. `residual` may be undefined. Collective over the
  // ranks that share the experts.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const override;

  const Router* router() const override { return &router_; }

 private:
  // Routes x and lists the tokens of each expert; returns the plan of their dispatch.
  Routing route(const at::Tensor& x, const LayerInput& input, std::unique_ptr<DispatchPlan>& plan) const;
  // The shared experts in one go, and in halves (overlap_shared).
  at::Tensor shared(const at::Tensor& x, const at::Tensor& residual, bool training) const;
  at::Tensor shared_down(const at::Tensor& up, const at::Tensor& gate, const at::Tensor& residual) const;
  at::Tensor shared_gate(const at::Tensor& x) const;  // undefined without a gate

  MoeOptions options_;
  TensorParallel tp_;
  ExpertRanks ranks_;
  Router router_;
  Experts experts_;
  std::optional<Mlp> shared_;
  Parameter* shared_gate_weight_ = nullptr;  // [1, h]
};

// Returns the shape of the shared experts, which form one MLP. It does not recompute its activation by itself:
// MoeOptions::recompute_shared recomputes the whole MLP.
MlpShape shared_shape(const MoeShape& shape);

// Returns the memory and work of the layer, for the planner.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const MoeShape& shape,
                                              const MoeOptions& options);

}  // namespace megalith::nn

// Router: the linear layer that chooses experts, with its losses, its bias and its load statistics.
//
// Legend: t tokens of this rank, h hidden, E experts, k experts per token.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "megalith/nn/layer_input.h"
#include "megalith/nn/moe/routing.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {

// Statistics of one layer on this rank, summed over micro-batches; its tensors have no autograd history.
struct RouterStatistics {
  // A number that each micro-batch has. `sum` is over micro-batches; the mean over micro-batches and ranks is reported.
  struct Value {
    std::string name;
    at::Tensor sum;
  };
  int64_t micro_batches = 0;
  at::Tensor load;            // fp32 [E], on the model's device: tokens per expert after dropping
  int64_t choices = 0;        // before dropping
  std::vector<Value> losses;  // loss_names(), without the coefficients
  std::vector<Value> spread;  // spread_names()
};

// Returns the names of a router's losses, in the order of its shape: load_balancing_loss, seq_load_balancing_loss,
// global_load_balancing_loss, z_loss.
std::vector<std::string> loss_names(const RouterShape& shape);
// Returns ROLL's names for how evenly the choices of a micro-batch spread over the experts, before dropping: the
// standard deviation of the tokens per expert, expert_distributed_std, and their maximum, max_token_per_expert. As in
// ROLL they come with load_balancing_loss, which counts the choices; without it the list is empty.
std::vector<std::string> spread_names(const RouterShape& shape);

// Its parameters are weight [E, h] and, with expert_bias, the buffer bias [E], both replicated on every rank. Used by
// one thread per rank.
class Router {
 public:
  // `context` outlives it.
  Router(const ParameterScope& scope, const RouterShape& shape, int64_t hidden, Init init, const TensorParallel& tp,
         parallel::ParallelContext& context);

  // Routes x [t, h]. In training the losses are attached to the weights, each multiplied by input.aux_loss_scale. With
  // `decided`, the choices of an earlier run of the same pass, int64 [t, k], only their weights are computed.
  Routing forward(const at::Tensor& x, const LayerInput& input, const at::Tensor& decided = {}) const;
  // Adds the outcome to the statistics. Counts only training passes that record a graph, so that a recomputed layer
  // counts once.
  void note(const ExpertLists& lists, const LayerInput& input) const;

  // The configuration, and what has accumulated since begin_step().
  const RouterShape& shape() const { return shape_; }
  const RouterStatistics& statistics() const { return statistics_; }
  // Replaces what has accumulated and returns it: a caller that runs a pass by other means than forward(), such as a
  // CUDA graph, notes the pass itself.
  RouterStatistics exchange_statistics(RouterStatistics statistics) const {
    return std::exchange(statistics_, std::move(statistics));
  }
  // Begins a step, or begins it again: resets the statistics.
  void begin_step() const;
  // Ends a step: with expert_bias, updates the bias by `load` ([E], over all ranks).
  void end_step(const at::Tensor& load) const;

  // Manual routing replay: between start_recording() and take_recorded() the choices of every pass are kept; after
  // replay() the next passes repeat the given choices, int64 [t, k] each, in order.
  void start_recording() const;
  std::vector<at::Tensor> take_recorded() const;
  void replay(std::vector<at::Tensor> decisions) const;

 private:
  at::Tensor logits(const at::Tensor& x, const LayerInput& input) const;  // [t, E]
  at::Tensor replayed() const;  // the choice to repeat; undefined if this pass is free to choose
  // Returns the weights with all losses of the shape attached.
  at::Tensor with_losses(const at::Tensor& weights, const at::Tensor& logits, const LayerInput& input) const;
  at::Tensor sequence_numbers(const ops::SequenceLayout& layout, int64_t tokens) const;
  void note_spread(const at::Tensor& choices) const;

  RouterShape shape_;
  TensorParallel tp_;
  parallel::ParallelContext& context_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  // State that passes accumulate. forward is const like that of every layer: its result does not depend on this state,
  // except through the counts of global losses and replayed choices.
  mutable RouterStatistics statistics_;
  mutable at::Tensor global_choices_;  // for kGlobal: choices over the micro-batches so far
  mutable int64_t global_passes_ = 0;
  mutable std::deque<at::Tensor> replayed_;
  mutable std::vector<at::Tensor> recorded_;
  mutable bool recording_ = false;
};

}  // namespace megalith::nn

// Router: the linear layer that chooses experts, with its losses, its bias and what it tells about the load.
//
// Legend: t tokens of this rank, h hidden, E experts, k experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <string>
#include <vector>

#include "megalith/nn/layer_input.h"
#include "megalith/nn/moe/routing.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {

// Of one layer on this rank, summed over micro-batches; tensors without history.
struct RouterStatistics {
  struct Loss {
    std::string name;  // as in loss_names()
    at::Tensor sum;    // without its coefficient; the mean over all ranks is the loss
  };
  int64_t micro_batches = 0;
  at::Tensor load;  // fp32 [E], on the device of the model: tokens each expert got, after dropping
  int64_t choices = 0, dropped = 0;
  std::vector<Loss> losses;
};

// The names of a router's losses, in the order of its shape: load_balancing_loss, seq_load_balancing_loss,
// global_load_balancing_loss, z_loss.
std::vector<std::string> loss_names(const RouterShape& shape);

// Parameters weight [E, h] and, with a bias, the buffer bias [E]; the same on every rank. One thread a rank.
class Router {
 public:
  // `context` outlives it.
  Router(const ParameterScope& scope, const RouterShape& shape, int64_t hidden, Init init, const TensorParallel& tp,
         parallel::ParallelContext& context);

  // x [t, h]. In training losses are attached to the weights, each times input.aux_loss_scale.
  Routing forward(const at::Tensor& x, const LayerInput& input) const;
  // What came of it: in training passes that record a graph, so once for recomputed layers.
  void note(const ExpertLists& lists, const LayerInput& input) const;

  const RouterShape& shape() const { return shape_; }
  const RouterStatistics& statistics() const { return statistics_; }
  // The end of a step: statistics start anew. With a bias, `load` (fp32 [E], of all ranks) moves it.
  void end_step(const at::Tensor& load) const;

  // Routing replay by hand: what the next passes decided is kept (record), or the next passes take these decisions,
  // int64 [t, k] each, in order (replay).
  void start_recording() const;
  std::vector<at::Tensor> take_recorded() const;
  void replay(std::vector<at::Tensor> decisions) const;

 private:
  at::Tensor logits(const at::Tensor& x, const LayerInput& input) const;
  at::Tensor decided() const;  // by an earlier pass; undefined: nobody
  at::Tensor with_losses(const at::Tensor& weights, const at::Tensor& logits, const LayerInput& input) const;
  at::Tensor sequence_numbers(const ops::SequenceLayout& layout, int64_t tokens) const;
  void note_loss(const std::string& name, const at::Tensor& value) const;

  RouterShape shape_;
  TensorParallel tp_;
  parallel::ParallelContext& context_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  // What passes leave behind; forward is const as that of every layer, since its result does not depend on these, but
  // for counts of global losses and replayed decisions.
  mutable RouterStatistics statistics_;
  mutable at::Tensor global_choices_;  // of kGlobal, over the micro-batches so far
  mutable int64_t global_passes_ = 0;
  mutable std::deque<at::Tensor> replayed_;
  mutable std::vector<at::Tensor> recorded_;
  mutable bool recording_ = false;
};

}  // namespace megalith::nn

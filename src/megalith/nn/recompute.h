// Activation recompute: keep the inputs of a part of the model, run it again when backward needs what was inside.
// Results, dropout included, are bit for bit those of a run that keeps everything.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

using TensorList = std::vector<at::Tensor>;

// Where the kept inputs lie between forward and backward. With a group each rank keeps its share of the first
// dimension and they are gathered again: for inputs that are equal on all its ranks. An input whose first dimension
// does not divide is kept whole.
struct KeepInputs {
  const comm::Group* split_over = nullptr;
};

// fn(inputs) without keeping what is inside. `fn` is called twice: now, and in backward with the random streams of
// `rng` put back to where they are now (nullptr: nothing in fn is random). It must not change anything that its result
// depends on, and what it refers to must live until backward. Gradients flow to the inputs and to parameters used in
// fn, also when no input requires one (behind a frozen embedding): the result then requires a gradient in any case.
// Backward of the region is a pass of its own: a parameter that several regions use is told complete by each of them.
at::Tensor recompute(std::function<at::Tensor(const TensorList&)> fn, const TensorList& inputs,
                     parallel::RngTracker* rng, KeepInputs keep = {});

// Frees the storage of `value` once its consumer has run, and computes it again just before the consumer's backward
// needs it: `value` was made by `make` from things that are kept anyway (a norm from the residual stream). It is
// contiguous and has its storage for itself.
// `consumer_out`: an output of the function that saved `value`; nothing else may read `value` later. Does nothing when
// consumer_out needs no gradient.
void discard_until_backward(const at::Tensor& value, std::function<at::Tensor()> make, const at::Tensor& consumer_out);

}  // namespace megalith::nn

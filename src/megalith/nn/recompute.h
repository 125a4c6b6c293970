// Activation recomputation: keep only the inputs of a region of the model, and run it again when backward needs its
// intermediate results. Results, including dropout, are bit-identical to those of a run that keeps everything.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <functional>
#include <map>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

using TensorList = std::vector<at::Tensor>;

// How inputs are kept between forward and backward. With a group, for inputs that are equal on all its ranks, each rank
// keeps its share of the first dimension, and backward gathers the shares. An input whose first dimension is not
// divisible is kept whole.
struct KeepInputs {
  const comm::Group* split_over = nullptr;
};

// Returns fn(inputs) without keeping its intermediate results. `fn` is called twice: now, and in backward with the
// random streams of `rng` reset to their current state (nullptr if fn uses no random numbers). It must not change
// anything that its result depends on, and what it refers to must live until backward. Gradients flow to the inputs and
// to the parameters used in fn; the result requires a gradient even if no input does (after a frozen embedding). The
// backward of the region is a separate autograd pass: a parameter used in several regions is reported complete by each.
at::Tensor recompute(std::function<at::Tensor(const TensorList&)> fn, const TensorList& inputs,
                     parallel::RngTracker* rng, KeepInputs keep = {});

// Values that the first run of a region leaves for its second run, such as counts that the host had to wait for. Each
// is kept under the object that leaves it, until the graph is freed.
class RegionNotes {
 public:
  // Returns the notes of the innermost region that recompute() is running on this thread; nullptr outside of regions.
  static RegionNotes* current();

  // Leaves a note in the first run. An object leaves at most one per region.
  void leave(const void* owner, std::any note) { notes_[owner] = std::move(note); }
  // Returns the note of the first run; nullptr in the first run itself.
  template <typename T>
  const T* find(const void* owner) const {
    const auto found = notes_.find(owner);
    return again_ && found != notes_.end() ? std::any_cast<T>(&found->second) : nullptr;
  }
  void begin_second_run() { again_ = true; }
  bool is_first_run() const { return !again_; }

 private:
  std::map<const void*, std::any> notes_;
  bool again_ = false;
};

// Frees the storage of `value` after its consumer has run, and recomputes it by `make` just before the consumer's
// backward needs it. `make` computes `value` from tensors that are kept anyway (a norm from the residual stream).
// `value` is contiguous and does not share its storage. `consumer_out` is an output of the function that saved `value`;
// nothing else may read `value` later. Does nothing if consumer_out does not require a gradient.
void discard_until_backward(const at::Tensor& value, std::function<at::Tensor()> make, const at::Tensor& consumer_out);

}  // namespace megalith::nn

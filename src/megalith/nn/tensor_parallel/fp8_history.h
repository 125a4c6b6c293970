// What the delayed fp8 recipe remembers: the largest magnitudes of a linear layer's tensors in the steps before, and
// the scales that follow from them (Transformer Engine's DelayedScaling).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "megalith/comm/group.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

struct Parameter;

// Of one weight (Attachments::fp8). Changes at the end of a step alone, so that every micro-batch of a step, and a
// layer that is computed twice, has the same scales. One thread a rank.
struct Fp8History {
  enum Tensor : int64_t { kInput, kWeight, kGradient, kTensors };

  ops::Fp8Recipe recipe;
  at::Tensor state;   // fp32 [3, 1 + history]: the scale, then the largest magnitudes, the last step's first
  at::Tensor seen;    // fp32 [3]: largest magnitudes of this step so far
  bool fresh = true;  // no step is over: scales are found from each tensor itself

  Fp8History(const ops::Fp8Recipe& recipe, at::Device device);
  // How `which` is cast now. `record`: it is looked at, too.
  ops::Fp8Cast cast(Tensor which, bool record) const;
};

// The history of a weight whose products `recipe` casts; nullptr: it needs none.
std::shared_ptr<Fp8History> fp8_history(const std::optional<ops::Fp8Recipe>& recipe, at::Device device);

// The end of a step: what was seen, the largest over the ranks of `group`, joins the history, and scales become
// (reach / largest) / 2^margin; where nothing was seen, or something that is not finite, a scale stays. Collective over
// ranks that hold the same layers. Parameters without history are passed over.
void end_fp8_step(std::span<Parameter* const> parameters, const comm::Group& group);

}  // namespace megalith::nn

// State of the delayed fp8 recipe (Transformer Engine's DelayedScaling): the largest magnitudes of a linear layer's
// tensors in previous steps, and the scales derived from them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "megalith/comm/group.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

struct Parameter;

// The history of one weight (Attachments::fp8). Scales change only at the end of a step, so that all micro-batches of a
// step, and both passes of a recomputed layer, use the same ones. Used by one thread per rank.
struct Fp8History {
  // Rows of `state`: x, W and dy of the layer; kTensors is their number.
  enum Tensor : int64_t { kInput, kWeight, kGradient, kTensors };

  ops::Fp8Recipe recipe;
  at::Tensor state;   // fp32 [3, 1 + history]: the scale, then the largest magnitudes, most recent step first
  at::Tensor seen;    // fp32 [3]: largest magnitudes of this step so far
  bool fresh = true;  // no step has ended: scales are computed from each tensor itself

  // A fresh history: scales of 1, nothing seen.
  Fp8History(const ops::Fp8Recipe& recipe, at::Device device);
  // Returns how to cast `which` now. With `record`, its magnitude is added to `seen`.
  ops::Fp8Cast cast(Tensor which, bool record) const;
};

// Returns a new history for a weight whose products use `recipe`, or nullptr if the recipe needs none.
std::shared_ptr<Fp8History> fp8_history(const std::optional<ops::Fp8Recipe>& recipe, at::Device device);

// Whether the products with `weight` [o, i] are in fp8: `recipe` asks for it, and both sizes are multiples of
// fp8_width_multiple().
bool applies_fp8(const std::optional<ops::Fp8Recipe>& recipe, const at::Tensor& weight);
bool applies_fp8(const std::optional<ops::Fp8Recipe>& recipe, int64_t out, int64_t in);
// A layer calls it for a weight that it multiplies with `recipe`: attaches the history, if the recipe has one, and
// notes whether fp8 applies. Sizes depend on the layout, but a weight has its history in all of them.
void attach_fp8(Parameter& weight, const std::optional<ops::Fp8Recipe>& recipe);

// Ends a step: the magnitudes seen, maximized over the ranks of `group`, join the history, and scales become
// (reach / largest) / 2^margin. A scale for which nothing, or something that is not finite, was seen stays. Collective
// over ranks that hold the same layers. Skips parameters without a history.
void end_fp8_step(std::span<Parameter* const> parameters, const comm::Group& group);

}  // namespace megalith::nn

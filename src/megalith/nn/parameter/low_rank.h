// LowRank: an update of small rank that a layer adds to a weight, W + s·B·A (LoRA, Hu et al., 2021; the rank-stabilised
// form differs in s alone). The weight itself does not change and mostly is not trained; A and B are.
//
// Legend: t tokens, i inputs, o outputs, r rank, m modules (below), n experts of a rank.
//
// A weight that fuses tensors (query | key | value) may have updates for some of them. Tensors that are one module in
// files (gpt2's c_attn) share an A; each has rows of B. The products with all A's are one, those with the B's one each,
// added to the outputs where they lie.
//
//   use             A on a rank        B on a rank     collectives beyond the layer's own
//   kColumn         [m r, i] whole     rows of W       none; with sequence parallelism reduce-scatter of dh [t, m r]
//   kRow            [r, i/tp]          [o, r] whole    none: partial products join the layer's sum
//   kReplicated     whole              whole           none
//   kRouter         whole              whole           none
//   kLookup         [v/tp, r]          [h, r] whole    none: partial products join the layer's sum
//   kGrouped…       as above for each expert, over etp
//
// What is whole has partial gradients where each rank has only some of the outputs, inputs or tokens: they are summed
// at the end of a step as those of other replicated parameters are (ParameterSpec::partial_grad_over_tp).
//
// The numbers of A and B may have another type than the weight (fp32 beside bf16): they are used in the type of the
// activations, their gradients accumulate in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

// What all updates of a model chunk share.
struct LowRankState {
  bool active = true;     // false: as if there were none
  bool training = false;  // dropout is on
};

struct LowRank {
  // One of the tensors that the weight fuses. Of grouped weights: of every expert alike.
  struct Part {
    int64_t out = 0;   // its first output among the weight's on this rank
    int64_t rows = 0;  // its outputs on this rank
    int64_t a = 0;     // its module's first row of A
    int64_t b = 0;     // its first row of B; grouped: of the first expert, the others' follow
  };

  Parameter* a = nullptr;  // [m r, …]; grouped [n m r, i]; lookup [v/tp, r]
  Parameter* b = nullptr;  // [Σ rows, r]; grouped [n Σ rows, r]
  int64_t rank = 0;
  double scale = 1;
  double dropout = 0;  // on the input of A, in training
  parallel::RngTracker* rng = nullptr;
  std::vector<Part> parts;
  const LowRankState* state = nullptr;  // outlives it

  // Dropout's mask for the input x of A, of x's type: 0 or 1/(1-p). Undefined without dropout. `split`: x has different
  // columns or tokens on every tp rank; otherwise it is the same on all of them.
  at::Tensor dropout_mask(const at::Tensor& x, bool split) const;
  // Parts of one module share columns of x Aᵀ: whether part number `part` is the first of its module.
  bool opens_module(size_t part) const { return part == 0 || parts[part].a != parts[part - 1].a; }
};

// x where `mask` is undefined, otherwise their product: the input of A.
at::Tensor masked(const at::Tensor& x, const at::Tensor& mask);
// dx += grad of the masked input, in place.
void add_masked(const at::Tensor& dx, const at::Tensor& grad, const at::Tensor& mask);

// The update that counts now; nullptr: none. `lookup`: rows of the weight are looked up (a tied one is used both ways).
const LowRank* active_update(const Parameter& weight, bool lookup = false);

// Products with the factors A and B of an update, without autograd: one matrix each, or one for every group of rows.
class LowRankFactors {
 public:
  virtual ~LowRankFactors() = default;

  // x Aᵀ [t, m r].
  virtual at::Tensor hidden(const at::Tensor& x) const = 0;
  // y[:, part] += s · hidden Bᵀ for every part, in place; y [t, o].
  virtual void add_output(const at::Tensor& hidden, const at::Tensor& y) const = 0;
  // s · dy B [t, m r].
  virtual at::Tensor hidden_grad(const at::Tensor& dy) const = 0;
  // dx += hidden_grad A, masked, in place.
  virtual void add_input_grad(const at::Tensor& hidden_grad, const at::Tensor& mask, const at::Tensor& dx) const = 0;
  // Gradients of A and B as Parameter::add_weight_grad gives them; `in`: the input of A.
  virtual at::Tensor a_grad(const at::Tensor& hidden_grad, const at::Tensor& in) const = 0;
  virtual at::Tensor b_grad(const at::Tensor& dy, const at::Tensor& hidden) const = 0;
};
// The factors of an update of one matrix; `update` outlives them.
std::unique_ptr<LowRankFactors> low_rank_factors(const LowRank& update);

// y + s · (x Aᵀ) Bᵀ with autograd, for small weights (routers); y itself without an active update. `split`: as in
// LowRank::dropout_mask.
at::Tensor with_low_rank(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, bool split);

}  // namespace megalith::nn

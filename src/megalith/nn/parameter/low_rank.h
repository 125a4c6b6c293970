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
// at the end of a step as those of other replicated parameters are (Parameter::partial_grad_over_tp).
//
// The numbers of A and B may have another type than the weight (fp32 beside bf16): they are used in the type of the
// activations, their gradients accumulate in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/gemm/grouped_gemm.h"
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
};

// The update that counts now; nullptr: none. `lookup`: rows of the weight are looked up (a tied one is used both ways).
const LowRank* active_update(const Parameter& weight, bool lookup = false);

// A and B as arguments of an autograd function, which autograd has to know of; nothing without an update.
std::optional<at::Tensor> a_of(const LowRank* update);
std::optional<at::Tensor> b_of(const LowRank* update);

// The input of A: x, or with dropout a part of it.
struct LowRankInput {
  at::Tensor x;     // [t, i]
  at::Tensor mask;  // of x's type, 0 or 1/(1-p); undefined: no dropout
  at::Tensor value() const { return mask.defined() ? x.mul(mask) : x; }
};
// `split`: x has other columns or tokens on every tp rank, otherwise it is the same on all of them.
LowRankInput low_rank_input(const LowRank& update, const at::Tensor& x, bool split);

// ---- Without autograd, for use inside of other functions ----
// x Aᵀ [t, m r].
at::Tensor low_rank_hidden(const LowRank& update, const at::Tensor& x);
// y[:, part] += s · h Bᵀ for every part, in place; y [t, o], h [t, m r].
void add_low_rank(const LowRank& update, const at::Tensor& h, const at::Tensor& y);
// s · dy B [t, m r].
at::Tensor low_rank_hidden_grad(const LowRank& update, const at::Tensor& dy);
// dx += dh A, in place.
void add_low_rank_input_grad(const LowRank& update, const at::Tensor& dh, const at::Tensor& mask, const at::Tensor& dx);
// Gradients of A and B, as Parameter::add_weight_grad gives them: of `dh` and the input of A; of `dy` and h.
at::Tensor low_rank_a_grad(const LowRank& update, const at::Tensor& dh, const LowRankInput& input);
at::Tensor low_rank_b_grad(const LowRank& update, const at::Tensor& dy, const at::Tensor& h);

// Both where they are trained, at once or in the parameters' queue.
struct LowRankGrads {
  at::Tensor a, b;
};
LowRankGrads low_rank_grads(const LowRank& update, const at::Tensor& dy, const at::Tensor& h, const at::Tensor& dh,
                            const LowRankInput& input);
// Whether backward needs the input of A.
bool keeps_input(const LowRank* update);

// The same for rows of groups with a weight each; x [r, i], `counts` of them for each expert.
at::Tensor grouped_low_rank_hidden(const LowRank& update, const at::Tensor& x, const ops::GroupCounts& counts);
void add_grouped_low_rank(const LowRank& update, const at::Tensor& h, const at::Tensor& y,
                          const ops::GroupCounts& counts);
at::Tensor grouped_low_rank_hidden_grad(const LowRank& update, const at::Tensor& dy, const ops::GroupCounts& counts);
void add_grouped_low_rank_input_grad(const LowRank& update, const at::Tensor& dh, const at::Tensor& mask,
                                     const at::Tensor& dx, const ops::GroupCounts& counts);
at::Tensor grouped_low_rank_a_grad(const LowRank& update, const at::Tensor& dh, const LowRankInput& input,
                                   const ops::GroupCounts& counts);
at::Tensor grouped_low_rank_b_grad(const LowRank& update, const at::Tensor& dy, const at::Tensor& h,
                                   const ops::GroupCounts& counts);

// ---- With autograd ----
// y + s · (x Aᵀ) Bᵀ for small weights (routers); y itself without an active update. `split`: as above.
at::Tensor with_low_rank(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, bool split);

}  // namespace megalith::nn

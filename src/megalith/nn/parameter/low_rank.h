// LowRank: a low-rank update that a layer adds to a weight, W + s·B·A (LoRA, Hu et al., 2021; the rank-stabilized form
// differs only in s). The weight itself does not change and is usually frozen; A and B are trained.
//
// Legend: t tokens, i inputs, o outputs, r rank, m modules (below), n experts of a rank.
//
// A weight that fuses tensors (query | key | value) may have updates for some of them. Tensors that are one module in
// files (gpt2's c_attn) share an A; each has its own rows of B. One product covers all A's; the B's take one product
// each, added to the outputs in place.
//
//   use             A on a rank        B on a rank     collectives beyond the layer's own
//   kColumn         [m r, i] whole     rows of W       none; with sequence parallelism reduce-scatter of dh [t, m r]
//   kRow            [r, i/tp]          [o, r] whole    none: partial products join the layer's sum
//   kReplicated     whole              whole           none
//   kRouter         whole              whole           none
//   kLookup         [v/tp, r]          [h, r] whole    none: partial products join the layer's sum
//   kGrouped…       as above for each expert, over etp
//
// A factor that is whole has partial gradients if each rank has only some of the outputs, inputs or tokens: they are
// summed at the end of a step like those of other replicated parameters (ParameterSpec::partial_grad_over_tp).
//
// With a magnitude vector m the update is weight-decomposed (DoRA, Liu et al., 2024): row o of the weight becomes
// m_o / n_o · (W + s·B·A)_o, where n_o is the norm of (W + s·B·A)_o and a constant for gradients. For kColumn, kRow and
// kReplicated only.
//
// A and B may have another dtype than the weight (fp32 beside bf16). They are cast to the dtype of the activations for
// use; their gradients accumulate in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::nn {

// State shared by all updates of a model chunk.
struct LowRankState {
  bool active = true;     // false disables all updates
  bool training = false;  // dropout is on
};

// The update of one parameter.
struct LowRank {
  // One of the tensors that the weight fuses; for grouped weights, the same in every expert.
  struct Part {
    int64_t out = 0;   // its first output among the weight's on this rank
    int64_t rows = 0;  // its outputs on this rank
    int64_t a = 0;     // first row of A of its module
    int64_t b = 0;     // its first row of B; if grouped, that of the first expert, followed by the others
    double scale = 1;  // s of W + s·B·A
  };

  Parameter* a = nullptr;          // [m r, …]; grouped [n m r, i]; lookup [v/tp, r]
  Parameter* b = nullptr;          // [Σ rows, r]; grouped [n Σ rows, r]
  Parameter* magnitude = nullptr;  // [Σ rows], in the order of B; nullptr without weight decomposition
  // The group over which the inputs of a weight with magnitudes are split; std::nullopt if each rank has all of them.
  std::optional<comm::Group> inputs_over;
  int64_t rank = 0;    // the largest of its modules; smaller ones are padded with zeros, which no step changes
  double dropout = 0;  // on the input of A, in training
  parallel::RngTracker* rng = nullptr;
  std::vector<Part> parts;
  const LowRankState* state = nullptr;  // outlives it

  // Returns the dropout mask for the input x of A, in x's dtype: 0 or 1/(1-p). Undefined without dropout. `split` says
  // that x has different columns or tokens on every tp rank; otherwise it is the same on all of them.
  at::Tensor dropout_mask(const at::Tensor& x, bool split) const;
  // Whether part number `part` is the first of its module. Parts of one module share columns of x Aᵀ.
  bool opens_module(size_t part) const { return part == 0 || parts[part].a != parts[part - 1].a; }
};

// Returns the input of A: x · mask, or x if `mask` is undefined.
at::Tensor masked(const at::Tensor& x, const at::Tensor& mask);
// Adds the gradient of the masked input to dx in place: dx += grad · mask.
void add_masked(const at::Tensor& dx, const at::Tensor& grad, const at::Tensor& mask);

// Returns the update of `weight` that is active now, or nullptr. `lookup` says that rows of the weight are looked up; a
// tied embedding is used both ways.
const LowRank* active_update(const Parameter& weight, bool lookup = false);

// Products with the factors A and B of an update, without autograd: one matrix each, or one per group of rows.
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
  // Return the gradients of A and B like Parameter::add_weight_grad; `in` is the input of A.
  virtual at::Tensor a_grad(const at::Tensor& hidden_grad, const at::Tensor& in) const = 0;
  virtual at::Tensor b_grad(const at::Tensor& dy, const at::Tensor& hidden) const = 0;
};
// Returns the factors of an update of one matrix; `update` outlives them.
std::unique_ptr<LowRankFactors> low_rank_factors(const LowRank& update);

// Returns y + s · (x Aᵀ) Bᵀ with autograd, for small weights (routers), or y itself without an active update. `split`
// has the meaning of LowRank::dropout_mask.
at::Tensor with_low_rank(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, bool split);

}  // namespace megalith::nn

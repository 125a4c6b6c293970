#include "megalith/nn/parameter/low_rank.h"

#include <ATen/ATen.h>

#include "megalith/ops/gemm/product.h"

namespace megalith::nn {

namespace {

// In the type of the activations; without history.
at::Tensor as(const Parameter& parameter, const at::Tensor& like) {
  return parameter.value.detach().to(like.scalar_type());
}

// Where the gradient of a parameter goes: main_grad, or a tensor for autograd. Written part by part.
class GradTarget {
 public:
  explicit GradTarget(Parameter& parameter)
      : parameter_(parameter),
        to_main_(parameter.main_grad.defined()),
        into_(to_main_ ? parameter.main_grad : at::empty_like(parameter.value)),
        beta_(to_main_ && !parameter.main_grad_is_stale ? 1 : 0) {}

  const at::Tensor& into() const { return into_; }
  double beta() const { return beta_; }
  // All parts are written.
  at::Tensor done() const {
    if (!to_main_) return into_;
    parameter_.main_grad_is_stale = false;
    return {};
  }

 private:
  Parameter& parameter_;
  const bool to_main_;
  const at::Tensor into_;
  const double beta_;
};

// The matrices of one part of a grouped B, [n, rows, r].
at::Tensor part_matrices(const at::Tensor& b, const LowRank::Part& part, const ops::GroupCounts& counts) {
  const auto n = counts.groups();
  return b.narrow(0, part.b, n * part.rows).view({n, part.rows, b.size(1)});
}

// [n · rows, i] as [n, rows, i]
at::Tensor matrices(const at::Tensor& stacked, const ops::GroupCounts& counts) {
  return stacked.view({counts.groups(), -1, stacked.size(1)});
}

// Parts of one module meet in the same columns of h: whether this is the first of them.
bool opens_module(const LowRank& update, size_t part) {
  return part == 0 || update.parts[part].a != update.parts[part - 1].a;
}

void add_masked(const at::Tensor& dx, const at::Tensor& part, const at::Tensor& mask) {
  if (mask.defined())
    dx.addcmul_(part, mask);
  else
    dx.add_(part);
}

}  // namespace

const LowRank* active_update(const Parameter& weight, bool lookup) {
  const LowRank* update = weight.update;
  if (update == nullptr || !update->state->active || lookup != (weight.use == WeightUse::kLookup)) return nullptr;
  return update;
}

std::optional<at::Tensor> a_of(const LowRank* update) {
  return update ? std::optional(update->a->value) : std::nullopt;
}
std::optional<at::Tensor> b_of(const LowRank* update) {
  return update ? std::optional(update->b->value) : std::nullopt;
}

LowRankInput low_rank_input(const LowRank& update, const at::Tensor& x, bool split) {
  if (update.dropout == 0 || !update.state->training) return {x, {}};
  const auto fork = update.rng->fork_if(split);
  at::Tensor mask = at::empty_like(x).bernoulli_(1 - update.dropout, update.rng->generator());
  return {x, mask.mul_(1 / (1 - update.dropout))};
}

at::Tensor low_rank_hidden(const LowRank& update, const at::Tensor& x) { return x.mm(as(*update.a, x).t()); }

void add_low_rank(const LowRank& update, const at::Tensor& h, const at::Tensor& y) {
  const at::Tensor b = as(*update.b, y);
  for (const LowRank::Part& part : update.parts)
    y.narrow(1, part.out, part.rows)
        .addmm_(h.narrow(1, part.a, update.rank), b.narrow(0, part.b, part.rows).t(), 1, update.scale);
}

at::Tensor low_rank_hidden_grad(const LowRank& update, const at::Tensor& dy) {
  const at::Tensor b = as(*update.b, dy);
  at::Tensor dh = at::empty({dy.size(0), update.parts.back().a + update.rank}, dy.options());
  for (size_t i = 0; i < update.parts.size(); ++i) {
    const LowRank::Part& part = update.parts[i];
    ops::add_product(dh.narrow(1, part.a, update.rank), dy.narrow(1, part.out, part.rows),
                     b.narrow(0, part.b, part.rows), opens_module(update, i) ? 0 : 1, update.scale,
                     update.b->kernels());
  }
  return dh;
}

void add_low_rank_input_grad(const LowRank& update, const at::Tensor& dh, const at::Tensor& mask,
                             const at::Tensor& dx) {
  const at::Tensor a = as(*update.a, dh);
  if (mask.defined())
    add_masked(dx, dh.mm(a), mask);
  else
    dx.addmm_(dh, a);
}

at::Tensor low_rank_a_grad(const LowRank& update, const at::Tensor& dh, const LowRankInput& input) {
  return update.a->add_weight_grad(dh, input.value());
}

at::Tensor low_rank_b_grad(const LowRank& update, const at::Tensor& dy, const at::Tensor& h) {
  const GradTarget grad(*update.b);
  for (const LowRank::Part& part : update.parts)
    ops::add_product(grad.into().narrow(0, part.b, part.rows), dy.narrow(1, part.out, part.rows).t(),
                     h.narrow(1, part.a, update.rank), grad.beta(), update.scale, update.b->kernels());
  return grad.done();
}

LowRankGrads low_rank_grads(const LowRank& update, const at::Tensor& dy, const at::Tensor& h, const at::Tensor& dh,
                            const LowRankInput& input) {
  LowRankGrads grads;
  if (update.b->value.requires_grad())
    grads.b = update.b->now_or_later([&update, dy, h] { return low_rank_b_grad(update, dy, h); });
  if (update.a->value.requires_grad())
    grads.a = update.a->now_or_later([&update, dh, input] { return low_rank_a_grad(update, dh, input); });
  return grads;
}

bool keeps_input(const LowRank* update) { return update != nullptr && update->a->value.requires_grad(); }

at::Tensor grouped_low_rank_hidden(const LowRank& update, const at::Tensor& x, const ops::GroupCounts& counts) {
  return ops::grouped_mm_transposed(x, matrices(as(*update.a, x), counts), counts);
}

void add_grouped_low_rank(const LowRank& update, const at::Tensor& h, const at::Tensor& y,
                          const ops::GroupCounts& counts) {
  const at::Tensor b = as(*update.b, y);
  for (const LowRank::Part& part : update.parts)
    y.narrow(1, part.out, part.rows)
        .add_(ops::grouped_mm_transposed(h.narrow(1, part.a, update.rank), part_matrices(b, part, counts), counts),
              update.scale);
}

at::Tensor grouped_low_rank_hidden_grad(const LowRank& update, const at::Tensor& dy, const ops::GroupCounts& counts) {
  const at::Tensor b = as(*update.b, dy);
  std::vector<at::Tensor> columns;
  for (size_t i = 0; i < update.parts.size(); ++i) {
    const LowRank::Part& part = update.parts[i];
    const at::Tensor dh =
        ops::grouped_mm(dy.narrow(1, part.out, part.rows), part_matrices(b, part, counts), counts).mul_(update.scale);
    if (opens_module(update, i))
      columns.push_back(dh);
    else
      columns.back().add_(dh);
  }
  return columns.size() == 1 ? columns[0] : at::cat(columns, 1);
}

void add_grouped_low_rank_input_grad(const LowRank& update, const at::Tensor& dh, const at::Tensor& mask,
                                     const at::Tensor& dx, const ops::GroupCounts& counts) {
  add_masked(dx, ops::grouped_mm(dh, matrices(as(*update.a, dh), counts), counts), mask);
}

at::Tensor grouped_low_rank_a_grad(const LowRank& update, const at::Tensor& dh, const LowRankInput& input,
                                   const ops::GroupCounts& counts) {
  const GradTarget grad(*update.a);
  ops::grouped_weight_grad(matrices(grad.into(), counts), dh, input.value(), counts, grad.beta());
  return grad.done();
}

at::Tensor grouped_low_rank_b_grad(const LowRank& update, const at::Tensor& dy, const at::Tensor& h,
                                   const ops::GroupCounts& counts) {
  const GradTarget grad(*update.b);
  const at::Tensor scaled = h * update.scale;
  for (const LowRank::Part& part : update.parts)
    ops::grouped_weight_grad(part_matrices(grad.into(), part, counts), dy.narrow(1, part.out, part.rows),
                             scaled.narrow(1, part.a, update.rank), counts, grad.beta());
  return grad.done();
}

at::Tensor with_low_rank(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, bool split) {
  const LowRank* update = active_update(weight);
  if (update == nullptr) return y;
  const at::Tensor a = update->a->value.to(x.scalar_type()), b = update->b->value.to(y.scalar_type());
  const at::Tensor h = low_rank_input(*update, x, split).value().mm(a.t()).to(y.scalar_type());
  return at::addmm(y, h, b.t(), 1, update->scale);
}

}  // namespace megalith::nn

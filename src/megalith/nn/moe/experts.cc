// All experts of a rank as two grouped GEMMs around one activation. The weights of the experts are stacked in one
// parameter per projection, with each expert's matrix a ParameterPart of its own, so that checkpoints name and split
// experts one by one while the kernels see one tensor.
//
//   gate_up  | expert 0: gate rows, up rows | expert 1: gate, up | …     [n · 2f/etp, h]
//   down     | expert 0: h rows             | expert 1           | …     [n · h, f/etp]
//
// The layer has no collective: rows arrive by the dispatcher, which also adds the partial results of etp ranks.
#include "megalith/nn/moe/experts.h"

#include <ATen/ATen.h>

#include "megalith/nn/moe/grouped_product.h"

namespace megalith::nn {

namespace {

// Returns this rank's rows (dim 0) or columns (dim 1) of one matrix of one expert.
ParameterPart part_of(int64_t expert, const char* name, std::vector<int64_t> shape, size_t dim,
                      const ExpertShare& share, int64_t row) {
  ParameterPart part{fmt::format("{}.{}.weight", expert, name), shape, std::vector<int64_t>(2, 0), shape, row};
  part.extent[dim] = shape[dim] / share.etp;
  part.offset[dim] = share.etp_rank * part.extent[dim];
  return part;
}

}  // namespace

// The up projection can have its rows copied again in backward, the down projection its activation recomputed: make_x.
at::Tensor grouped_linear(const at::Tensor& x, Parameter& weight, const ops::GroupCounts& counts,
                          std::function<at::Tensor()> make_x) {
  return local_product(x, make_grouped_product(weight, counts), std::move(make_x));
}

Experts::Experts(const ParameterScope& scope, const MoeShape& shape, const ExpertShare& share,
                 bool recompute_activation, const std::optional<ops::Fp8Recipe>& fp8)
    : gated_(shape.gated),
      activation_(shape.activation),
      recompute_activation_(recompute_activation),
      count_(share.count) {
  ParameterSpec up{.name = gated_ ? "gate_up.weight" : "up.weight",
                   .init = shape.init,
                   .use = WeightUse::kGroupedColumn,
                   .split_over_tp = share.etp > 1,
                   .expert = true};
  ParameterSpec down{.name = "down.weight",
                     .init = shape.out_init,
                     .use = WeightUse::kGroupedRow,
                     .split_over_tp = share.etp > 1,
                     .expert = true};
  const int64_t width = shape.width / share.etp;
  int64_t row = 0;
  for (int64_t expert = share.first; expert < share.first + share.count; ++expert) {
    if (gated_) {
      up.parts.push_back(part_of(expert, "gate", {shape.width, shape.hidden}, 0, share, row));
      row += width;
    }
    up.parts.push_back(part_of(expert, "up", {shape.width, shape.hidden}, 0, share, row));
    row += width;
    down.parts.push_back(
        part_of(expert, "down", {shape.hidden, shape.width}, 1, share, (expert - share.first) * shape.hidden));
  }
  up_ = &scope.add(std::move(up), {row, shape.hidden});
  down_ = &scope.add(std::move(down), {share.count * shape.hidden, width});
  for (Parameter* weight : {up_, down_}) attach_grouped_fp8(*weight, count_, fp8);
}

at::Tensor Experts::forward(const at::Tensor& rows, const ops::GroupCounts& counts, const LocalRows& local) const {
  const at::Tensor before = grouped_linear(rows, *up_, counts, local.recompute);
  const auto activate = [gated = gated_, kind = activation_](const at::Tensor& y, const at::Tensor& weights) {
    if (gated) return ops::gated_activation(y, kind, weights);
    const at::Tensor plain = ops::bias_activation(y, {}, kind);
    return weights.defined() ? ops::weigh_rows(plain, weights) : plain;
  };
  // Without recomputation the down projection keeps `inside`; with it, only `before` is kept, by the activation.
  const at::Tensor inside = activate(before, local.weights);
  if (!recompute_activation_) return grouped_linear(inside, *down_, counts);
  const at::Tensor weights = local.weights.defined() ? local.weights.detach() : at::Tensor();
  return grouped_linear(inside, *down_, counts, [activate, kept = before.detach(), weights] {
    const at::NoGradGuard no_grad;
    return activate(kept, weights);
  });
}

}  // namespace megalith::nn

#include "megalith/train/step/step_totals.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

namespace megalith::train {

namespace {

// The shares of all ranks, added up.
at::Tensor summed_over_world(const StepTotals::Share& share, const parallel::ParallelContext& context) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts{share.veto, share.terms, share.metrics.collect(context.device())};
  if (share.loads.defined()) parts.push_back(share.loads.flatten());
  const at::Tensor all = at::cat(parts);
  context.world().world().all_reduce(all, comm::ReduceOp::kSum, "totals of the step");
  return all;
}

}  // namespace

StepTotals::StepTotals(Share share, const parallel::ParallelContext& context)
    : names_(share.metrics),
      terms_end_(1 + share.terms.numel()),
      load_sizes_(share.loads.defined() ? share.loads.sizes().vec() : std::vector<int64_t>{}),
      summed_(summed_over_world(share, context)),
      host_(summed_) {}

at::Tensor StepTotals::squares() const {
  const at::NoGradGuard no_grad;
  const at::Tensor squares = optim::squares_of(summed_.narrow(0, 1, terms_end_ - 1));
  return squares.masked_fill(summed_.select(0, 0).gt(0), std::numeric_limits<double>::quiet_NaN());
}

std::span<const double> StepTotals::part(int64_t begin, int64_t end) const {
  const double* values = host_.value().const_data_ptr<double>();
  return {values + begin, values + end};
}

bool StepTotals::vetoed() const { return part(0, 1)[0] > 0; }
optim::GradStats StepTotals::stats() const { return optim::stats_of(part(1, terms_end_)); }

std::vector<MetricTotal> StepTotals::metrics() const {
  return names_.totals(part(terms_end_, summed_.numel() - load_numel()));
}

int64_t StepTotals::load_numel() const { return load_sizes_.empty() ? 0 : c10::multiply_integers(load_sizes_); }

at::Tensor StepTotals::loads_in(const at::Tensor& all) const {
  if (load_sizes_.empty()) return {};
  return all.narrow(0, all.numel() - load_numel(), load_numel()).view(load_sizes_);
}

at::Tensor StepTotals::loads() const { return loads_in(summed_); }
at::Tensor StepTotals::loads_on_host() const { return loads_in(host_.value()); }

}  // namespace megalith::train

// All numbers of a step travel in one all-reduce of fp64 [names, 2], and are read from the device once. Until then sums
// on the device are only collected, so that reporting never makes the host wait in the middle of a step.
#include "megalith/train/report/metric_sums.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"

namespace megalith::train {

MetricSums::MetricSums(std::vector<std::string> names) {
  for (std::string& name : names) columns_.push_back({.name = std::move(name)});
}

MetricSums::Column& MetricSums::column(const std::string& name) {
  for (Column& column : columns_)
    if (column.name == name) return column;
  throw InternalError(fmt::format("the metric {} is not among the metrics_keys", name));
}

void MetricSums::add(const std::string& name, const at::Tensor& sum, double weight) {
  Column& to = column(name);
  to.pending.push_back(sum.detach());
  to.weight += weight;
}

void MetricSums::add(const std::string& name, double sum, double weight) {
  Column& to = column(name);
  to.sum += sum;
  to.weight += weight;
}

std::vector<MetricTotal> MetricSums::reduce(const parallel::ParallelContext& context, const char* label) const {
  const at::NoGradGuard no_grad;
  at::Tensor totals = at::empty({std::ssize(columns_), 2}, at::kDouble);
  for (size_t i = 0; i < columns_.size(); ++i) {
    totals[static_cast<int64_t>(i)][0] = columns_[i].sum;
    totals[static_cast<int64_t>(i)][1] = columns_[i].weight;
  }
  const comm::Group everyone = context.world().world();
  const bool alone = everyone.size() == 1;  // with one rank nothing has to go to the device
  if (!alone) totals = totals.to(everyone.device());
  // fp64 on the device: token counts of large runs exceed what fp32 can count.
  for (size_t i = 0; i < columns_.size(); ++i)
    if (!columns_[i].pending.empty())
      totals[static_cast<int64_t>(i)][0] += at::stack(columns_[i].pending).to(totals.device(), at::kDouble).sum();
  if (!alone) everyone.all_reduce(totals, comm::ReduceOp::kSum, label);
  totals = totals.cpu();
  std::vector<MetricTotal> result;
  const double* value = totals.const_data_ptr<double>();
  for (size_t i = 0; i < columns_.size(); ++i) result.push_back({columns_[i].name, value[2 * i], value[2 * i + 1]});
  return result;
}

}  // namespace megalith::train

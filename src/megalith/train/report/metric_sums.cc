// All numbers of a step travel in one all-reduce of fp64 [names, 2], and are read from the device once. Until then sums
// on the device are only collected, so that reporting never makes the host wait in the middle of a step.
#include "megalith/train/report/metric_sums.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"

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

// fp64 also on the device: token counts of large runs exceed what fp32 can count.
at::Tensor MetricSums::collect(at::Device device) const {
  const at::NoGradGuard no_grad;
  const at::Tensor known = at::empty({std::ssize(columns_), 2}, at::kDouble);
  auto* value = known.mutable_data_ptr<double>();
  for (const Column& column : columns_) {
    *value++ = column.sum;
    *value++ = column.weight;
  }
  const at::Tensor sums = ops::to_device(known, device);
  for (size_t i = 0; i < columns_.size(); ++i)
    if (!columns_[i].pending.empty())
      sums[static_cast<int64_t>(i)][0] += ops::to_device(at::stack(columns_[i].pending), device).to(at::kDouble).sum();
  return sums.view(-1);
}

std::vector<MetricTotal> MetricSums::totals(std::span<const double> summed) const {
  check(summed.size() == 2 * columns_.size(), "{} numbers for {} metrics", summed.size(), columns_.size());
  std::vector<MetricTotal> result;
  for (size_t i = 0; i < columns_.size(); ++i) result.push_back({columns_[i].name, summed[2 * i], summed[2 * i + 1]});
  return result;
}

std::vector<MetricTotal> MetricSums::reduce(const parallel::ParallelContext& context, const char* label) const {
  const at::Tensor sums = collect(context.device());
  context.world().world().all_reduce(sums, comm::ReduceOp::kSum, label);
  const ops::HostTensor read(sums);
  return totals({read.value().const_data_ptr<double>(), static_cast<size_t>(sums.numel())});
}

}  // namespace megalith::train

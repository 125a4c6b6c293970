// Parameters and the tree of their names. A scope only carries a prefix; names become full ("layers.3.mlp.up.weight")
// when a parameter is added, since checkpoints, optimizers and adapters know nothing of scopes.
#include "megalith/nn/parameter/parameter.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/quantized_value.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/ops/gemm/gemm.h"

namespace megalith::nn {

bool GradientSlot::defers() const { return queue != nullptr && queue->recording() && main_grad.defined(); }

bool GradientSlot::incomplete() const {
  return queue != nullptr && main_grad.defined() && (queue->recording() || queue->size() > 0 || queue->held() > 0);
}

at::Tensor GradientSlot::now_or_later(std::function<at::Tensor()> work) {
  const bool holds = queue != nullptr && queue->holding() && main_grad.defined();
  if (!holds && !defers()) return work();
  // The result is dropped: with main_grad attached it is undefined.
  auto job = [work = std::move(work)] { work(); };
  if (holds)
    queue->hold(static_cast<double>(main_grad.numel()), std::move(job));
  else
    queue->add(std::move(job));
  return {};
}

// beta = 0 instead of a cleared buffer: the first micro-batch of a step overwrites, which saves one pass over
// main_grad.
at::Tensor Parameter::add_weight_grad(const at::Tensor& dy, const at::Tensor& x) {
  if (!grad.main_grad.defined()) return dy.t().mm(x).to(value.scalar_type());
  ops::add_gemm(grad.main_grad, dy.t(), x, grad.stale ? 0 : 1, /*alpha=*/1, kernels());
  grad.stale = false;
  return {};
}

std::vector<parallel::ShardedTensor> Parameter::sharded(const at::Tensor& like_value) const {
  check(like_value.sizes() == value.sizes(), "{}: the tensor to describe does not have the shape of the parameter",
        spec.name);
  std::vector<parallel::ShardedTensor> result;
  for (const ParameterPart& part : spec.parts) {
    // The part's rows of the parameter, without padding at their end; other dimensions are cut likewise.
    at::Tensor local = like_value.narrow(0, part.row, part.extent[0]);
    for (size_t d = 1; d < part.extent.size(); ++d) local = local.narrow(static_cast<int64_t>(d), 0, part.extent[d]);
    result.push_back({part.name, part.global_shape, part.offset, std::move(local), spec.replica});
  }
  return result;
}

// Linear: called a few times per run, for a few hundred parameters.
Parameter* ParameterSet::find(std::string_view name) const {
  for (const auto& parameter : parameters_)
    if (parameter->spec.name == name) return parameter.get();
  return nullptr;
}

int64_t ParameterSet::numel() const {
  int64_t total = 0;
  for (const auto& parameter : parameters_) total += parameter->value.numel();
  return total;
}

std::string ParameterScope::full(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

ParameterScope ParameterScope::child(std::string_view name) const {
  ParameterScope scope(*set_);
  scope.prefix_ = full(name);
  return scope;
}

Parameter& ParameterScope::add(ParameterSpec spec, std::vector<int64_t> shape) const {
  // A parameter without parts is one whole tensor of its own name.
  if (spec.parts.empty()) spec.parts.push_back({spec.name, shape, std::vector<int64_t>(shape.size(), 0), shape, 0});
  spec.name = full(spec.name);
  for (ParameterPart& part : spec.parts) part.name = full(part.name);
  const bool buffer = spec.role == ParameterRole::kBuffer;
  const at::TensorOptions options(buffer ? at::kFloat : spec.dtype.value_or(set_->dtype_));
  const bool quantized = set_->quantization_ && can_be_quantized(spec);
  at::Tensor value = quantized ? quantized_placeholder(shape, options.device(set_->device_))
                               : at::empty(shape, options.device(set_->device_));
  value.requires_grad_(!buffer);
  set_->parameters_.push_back(std::make_unique<Parameter>(std::move(spec), std::move(value)));
  Parameter& added = *set_->parameters_.back();
  added.plans = set_->plans_.get();
  if (quantized)
    added.attached.quantized = std::make_shared<QuantizedValue>(QuantizedValue{.format = *set_->quantization_});
  return added;
}

}  // namespace megalith::nn

#include "megalith/optim/param_buffer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/ops/update/flat.h"

namespace megalith::optim {

namespace {

BufferLayout plan(const std::vector<nn::Parameter*>& parameters, const BufferRules& rules) {
  std::vector<BufferItem> items;
  items.reserve(parameters.size());
  for (const nn::Parameter* p : parameters) items.push_back({p->value.numel(), p->spec.tied_over_stages()});
  return plan_buffer(items, rules);
}

}  // namespace

ParamBuffer::ParamBuffer(std::vector<nn::Parameter*> parameters, const BufferRules& rules, const ReduceRules& reduce,
                         ReduceGroups groups, size_t number)
    : number_(number),
      parameters_(std::move(parameters)),
      reduce_(reduce),
      groups_(std::move(groups)),
      layout_(plan(parameters_, rules)),
      reducing_(layout_.buckets.size()),
      gathering_(layout_.buckets.size()),
      over_instances_(layout_.buckets.size()),
      squares_(layout_.buckets.size()),
      flagged_(layout_.buckets.size()) {
  check(!parameters_.empty(), "a buffer of no parameters");
  const at::NoGradGuard no_grad;
  const auto options = parameters_[0]->value.options().requires_grad(false);
  params_ = at::zeros({layout_.numel()}, options);
  grads_ = at::zeros({layout_.numel()}, options.dtype(reduce_.grad_dtype));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& p = *parameters_[i];
    const BufferLayout::Item& item = layout_.items[i];
    at::Tensor view = params_.narrow(0, item.begin, item.end - item.begin).view(p.value.sizes());
    view.copy_(p.value.detach());
    p.value.set_data(view);
    p.grad.main_grad = grads_.narrow(0, item.begin, item.end - item.begin).view(p.value.sizes());
  }
  mark_stale();
}

at::Tensor ParamBuffer::own(const at::Tensor& flat, int bucket) const {
  return flat.narrow(0, layout_.shard_begin(bucket, shard_rank()), layout_.shard_numel(bucket));
}

at::Tensor ParamBuffer::squares_on_device(int bucket) const {
  return squares_[bucket] ? squares_[bucket]->on_device : at::Tensor();
}

std::optional<ExactSum> ParamBuffer::known_squares(int bucket) const {
  if (!squares_[bucket]) return std::nullopt;
  ExactSum sum;
  sum.add(squares_[bucket]->on_host.value());
  return sum;
}

void ParamBuffer::check_squares() const {
  for (size_t bucket = 0; bucket < squares_.size(); ++bucket) {
    if (!squares_[bucket]) continue;
    const bool finite = reduce_.measure == FiniteMeasure::kNone || std::isfinite(squares_[bucket]->on_host.value());
    check_.look({.buffer = *this, .bucket = static_cast<int>(bucket), .finite = finite});
  }
}

void ParamBuffer::check_gradients() const {
  check_squares();
  for (size_t bucket = 0; bucket < flagged_.size(); ++bucket) {
    if (!flagged_[bucket]) continue;
    const bool finite = flagged_[bucket]->value() == 0;
    check_.look({.buffer = *this, .bucket = static_cast<int>(bucket), .finite = finite, .reduced = true});
  }
}

void ParamBuffer::forget_squares() {
  check_squares();
  for (auto& squares : squares_) squares.reset();
}

void ParamBuffer::mark_stale() {
  for (auto& squares : squares_) squares.reset();
  for (auto& flag : flagged_) flag.reset();
  for (nn::Parameter* p : parameters_) p->grad.stale = true;
}

void ParamBuffer::zero_missing(int bucket) {
  for (const int item : layout_.buckets[bucket].items) {
    nn::Parameter& p = *parameters_[item];
    if (p.grad.stale) p.grad.main_grad.zero_();
    p.grad.stale = false;
  }
}

void ParamBuffer::start_reduce(int bucket) {
  zero_missing(bucket);
  BucketGradients measured{.buffer = *this, .bucket = bucket};
  const at::Tensor grads = measured.values();
  if (reduce_.alone && grads.is_cuda() && reduce_.factor == 1) {
    const at::Tensor sum = ops::sum_of_squares(grads);
    squares_[bucket] = Squares{sum, ops::HostScalar(sum)};
  } else if (reduce_.measure == FiniteMeasure::kLater && !check_.reads) {
    flagged_[bucket].emplace(ops::scale_and_flag_(grads, reduce_.factor));
  } else {
    if (reduce_.measure != FiniteMeasure::kNone)
      measured.finite = ops::scale_and_check_(grads, reduce_.factor);
    else if (reduce_.factor != 1)
      grads.mul_(reduce_.factor);
    check_.look(measured);
  }
  if (!groups_.sharded) {
    reducing_[bucket] = groups_.all.all_reduce_async(grads, reduce_.op, "gradients of a bucket");
  } else {
    reducing_[bucket] =
        groups_.shards.reduce_scatter_async(own(grads_, bucket), grads, reduce_.op, "gradients of a bucket");
    over_instances_[bucket].reset();
    // On a device both halves are queued at once, the second behind the first. Only a stream that does nothing else
    // waits in between: the one that computes goes on.
    if (!grads.is_cuda() || !spans_instances()) return;
    if (!between_halves_)
      between_halves_ = c10::impl::VirtualGuardImpl(grads.device().type()).getStreamFromGlobalPool(grads.device());
    const c10::StreamGuard on_its_stream(*between_halves_);
    continue_reduce(bucket);
  }
}

void ParamBuffer::continue_reduce(int bucket) {
  if (!spans_instances() || over_instances_[bucket]) return;
  reducing_[bucket].wait();
  over_instances_[bucket] =
      groups_.instances.all_reduce_async(own(grads_, bucket), reduce_.op, "gradients over optimizer instances");
}

bool ParamBuffer::reduced(int bucket) const {
  if (!spans_instances()) return reducing_[bucket].done();
  return over_instances_[bucket] && over_instances_[bucket]->done();
}

void ParamBuffer::finish_reduce(int bucket) {
  continue_reduce(bucket);
  if (spans_instances())
    over_instances_[bucket]->wait();
  else
    reducing_[bucket].wait();
}

void ParamBuffer::start_gather(int bucket) {
  if (!groups_.sharded) return;
  const BufferLayout::Bucket& b = layout_.buckets[bucket];
  gathering_[bucket] = groups_.shards.all_gather_async(params_.narrow(0, b.begin, b.numel()), own(params_, bucket),
                                                       "parameters of a bucket");
}

void ParamBuffer::finish_gather(int bucket) { gathering_[bucket].wait(); }

}  // namespace megalith::optim

// The collectives on one pair of flat buffers. What start_reduce does depends on the optimizer:
//
//   replicated state   all-reduce of the bucket over all replicas
//   ZeRO-1             reduce-scatter over the shards; each rank keeps its part
//   several instances  reduce-scatter within the instance, then all-reduce of the part over the instances
//
// Before that, gradients are scaled and checked for NaN, in one pass over memory. On CUDA the result of the check stays
// on the device until check_gradients, so the host can run ahead; the price is that a NaN is noticed after it has been
// reduced. No step is lost: check_gradients comes before the optimizer.
#include "megalith/optim/param_buffer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/fp8_value.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/ops/update/flat_buffer.h"

namespace megalith::optim {

namespace {

// A tied embedding gets its own bucket (BufferItem::own_bucket).
BufferLayout plan(const std::vector<nn::Parameter*>& parameters, const BufferRules& rules) {
  std::vector<BufferItem> items;
  items.reserve(parameters.size());
  for (const nn::Parameter* p : parameters) items.push_back({p->value.numel(), p->spec.tied_over_stages()});
  return plan_buffer(items, rules);
}

}  // namespace

ParamBuffer::ParamBuffer(std::vector<nn::Parameter*> parameters, const BufferRules& rules, const ReduceRules& reduce,
                         ReduceGroups groups, size_t number, const std::optional<ops::Fp8Recipe>& fp8)
    : number_(number),
      parameters_(std::move(parameters)),
      reduce_(reduce),
      groups_(std::move(groups)),
      layout_(plan(parameters_, rules)),
      fp8_(fp8),
      reducing_(layout_.buckets.size()),
      gathering_(layout_.buckets.size()),
      over_instances_(layout_.buckets.size()),
      squares_(layout_.buckets.size()),
      flagged_(layout_.buckets.size()) {
  check(!parameters_.empty(), "a buffer of no parameters");
  const at::NoGradGuard no_grad;
  const auto options = parameters_[0]->value.options().requires_grad(false);
  // Padding must be zero: it is reduced, gathered and updated with the rest.
  params_ = fp8_ ? at::zeros({layout_.numel()}, options.dtype(at::kByte)).view(at::kFloat8_e4m3fn)
                 : at::zeros({layout_.numel()}, options);
  grads_ = at::zeros({layout_.numel()}, options.dtype(reduce_.grad_dtype));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& p = *parameters_[i];
    const BufferLayout::Item& item = layout_.items[i];
    const at::Tensor view = params_.narrow(0, item.begin, item.end - item.begin).view(p.value.sizes());
    if (fp8_)
      p.attached.bytes = std::make_shared<nn::Fp8Value>(
          nn::Fp8Value{.dtype = p.value.scalar_type(), .inverse_scale = {}, .loaded = p.value.detach()});
    else
      view.copy_(p.value.detach());
    p.value.set_data(view);  // keeps the tensor's identity, which autograd and the layers refer to
    p.grad.main_grad = grads_.narrow(0, item.begin, item.end - item.begin).view(p.value.sizes());
  }
  if (fp8_) make_scales();
  mark_stale();
}

// One tensor for all scales, so that one collective finds their maxima; each parameter has a view of it.
void ParamBuffer::make_scales() {
  const bool squares = fp8_->scaling == ops::Fp8Scaling::kBlocks;
  const auto count = [&](const nn::Parameter& p) {
    return squares ? p.value.numel() / (ops::kFp8Block * ops::kFp8Block) : int64_t{1};
  };
  const auto padded = [&](const nn::Parameter& p) { return round_up(count(p), kFp8ScaleMultiple); };
  int64_t total = 0;
  for (const nn::Parameter* p : parameters_) total += padded(*p);
  inverse_scales_ = at::ones({total}, params_.options().dtype(at::kFloat));
  int64_t next = 0;
  for (nn::Parameter* p : parameters_) {
    at::Tensor& own = p->attached.bytes->inverse_scale;
    own = inverse_scales_.narrow(0, next, count(*p));
    if (squares) own = own.view({p->value.size(0) / ops::kFp8Block, p->value.size(1) / ops::kFp8Block});
    next += padded(*p);
  }
}

at::Tensor ParamBuffer::own(const at::Tensor& flat, int bucket) const {
  return flat.narrow(0, layout_.shard_begin(bucket, shard_rank()), layout_.shard_numel(bucket));
}

at::Tensor ParamBuffer::squares_on_device(int bucket) const {
  return squares_[bucket] ? squares_[bucket]->on_device : at::Tensor();
}

std::vector<at::Tensor> ParamBuffer::flags_on_device() const {
  std::vector<at::Tensor> flags;
  for (const auto& flag : flagged_)
    if (flag) flags.push_back(flag->on_device);
  return flags;
}

void ParamBuffer::check_gradients() const {
  for (size_t bucket = 0; bucket < squares_.size(); ++bucket) {
    if (!squares_[bucket]) continue;
    const bool finite = reduce_.measure == FiniteMeasure::kNone || std::isfinite(squares_[bucket]->on_host.value());
    check_.look({.buffer = *this, .bucket = static_cast<int>(bucket), .finite = finite});
  }
  for (size_t bucket = 0; bucket < flagged_.size(); ++bucket) {
    if (!flagged_[bucket]) continue;
    const bool finite = flagged_[bucket]->on_host.value() == 0;
    check_.look({.buffer = *this, .bucket = static_cast<int>(bucket), .finite = finite, .reduced = true});
  }
}

// Only the elements that this rank owns: with ZeRO-1 the rest of the buffer holds no valid gradients after the
// reduce-scatter. 16-bit gradients are multiplied in fp32, piece by piece to keep the temporary small: a factor on a
// device would otherwise be rounded to 16 bits first.
void ParamBuffer::scale_own(const at::Tensor& factor) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  const at::Tensor narrow = factor.to(at::kFloat);
  for (size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
    const at::Tensor grads = own(grads_, static_cast<int>(bucket));
    if (grads.scalar_type() == at::kFloat)
      grads.mul_(narrow);
    else
      for (const at::Tensor& piece : grads.split(kPiece)) piece.copy_(piece.to(at::kFloat).mul_(narrow));
    if (squares_[bucket]) squares_[bucket]->on_device = squares_[bucket]->on_device * factor.square();
  }
}

void ParamBuffer::scale_own(double factor) {
  for (size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
    own(grads_, static_cast<int>(bucket)).mul_(factor);
    if (squares_[bucket]) squares_[bucket]->on_device = squares_[bucket]->on_device * (factor * factor);
  }
}

// Also forgets what was measured: it belonged to the gradients of the last step.
void ParamBuffer::mark_stale() {
  for (auto& squares : squares_) squares.reset();
  for (auto& flag : flagged_) flag.reset();
  for (nn::Parameter* p : parameters_) p->grad.stale = true;
}

// A gradient that is still stale was not written in this step: its parameter was not used.
void ParamBuffer::zero_missing(int bucket) {
  for (const int item : layout_.buckets[bucket].items) {
    nn::Parameter& p = *parameters_[item];
    if (p.grad.stale) p.grad.main_grad.zero_();
    p.grad.stale = false;
  }
}

// Three ways to look at the gradients, cheapest first: a sum of squares that the optimizer reuses (single CUDA rank), a
// flag that is read later, or a check for which the host waits. All but the first scale in the same pass.
void ParamBuffer::start_reduce(int bucket) {
  zero_missing(bucket);
  BucketGradients measured{.buffer = *this, .bucket = bucket};
  const at::Tensor grads = measured.values();
  if (reduce_.alone && grads.is_cuda() && reduce_.factor == 1) {
    // The squares tell both: their sum is not finite if a gradient is not, and its root is the norm.
    const at::Tensor sum = ops::sum_of_squares(grads);
    squares_[bucket].emplace(sum);
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
    // On a device both halves are queued at once, the second after the first. Only a stream with no other work waits in
    // between; the computation continues.
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

// In place: each rank's input is its own part of the output. Not every backend knows fp8, but all move bytes.
void ParamBuffer::start_gather(int bucket) {
  if (!groups_.sharded) return;
  const BufferLayout::Bucket& b = layout_.buckets[bucket];
  const at::Tensor moved = fp8_ ? params_.view(at::kByte) : params_;
  gathering_[bucket] = groups_.shards.all_gather_async(moved.narrow(0, b.begin, b.numel()), own(moved, bucket),
                                                       "parameters of a bucket");
}

void ParamBuffer::finish_gather(int bucket) { gathering_[bucket].wait(); }

}  // namespace megalith::optim

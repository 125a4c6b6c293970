// Vocabulary-parallel cross-entropy. Each rank computes four numbers per row over its own columns (maximum, sum of
// exponentials, logit of the label, sum of logits); two all-reduces combine them; from then on everything is local:
//
//   loss = lse - (1-s)·target - s/K · Σ logits + z·lse²        s: label smoothing, K: vocabulary, lse = log Σ exp
//   d loss / d logit_j = p_j (1 + 2 z lse) - (1-s)·[j is the label] - s/K,     p_j = exp(logit_j - lse)
//
// So backward needs the logits and one number per row, and writes the gradient over the logits: the largest tensors of
// a step, [t, vocabulary], exist once. The logits are kept outside autograd's saved tensors, and their version counter
// is checked instead. One rank with the whole vocabulary takes one fused kernel where it can
// (cross_entropy_with_grad_); devices and dtypes without a kernel take ATen's operations, some rows at a time.
#include "megalith/ops/loss/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/loss/cross_entropy_internal.h"

namespace megalith::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the weights of the formula above: the smoothed loss with log p = logit - lse inserted. Megatron's smoothing
// gives the label 1 - a and every other token a / (K - 1); with s = a K / (K - 1) that is 1 - s on the label plus s / K
// on all tokens.
LossWeights weights_of(const VocabRange& range, const CrossEntropyOptions& options) {
  const double s = options.label_smoothing;
  return {.on_target = 1 - s, .off_target = s / static_cast<double>(range.total), .z = options.z_loss};
}

// The range must fit the columns: padding of the vocabulary may follow the valid ones, never lie between them.
void check_arguments(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                     const CrossEntropyOptions& options) {
  check(logits.dim() == 2 && logits.is_floating_point(), "cross-entropy takes logits [tokens, columns]; got {} of {}",
        shape_text(logits), c10::toString(logits.scalar_type()));
  check(labels.dim() == 1 && labels.scalar_type() == at::kLong && labels.size(0) == logits.size(0) &&
            labels.device() == logits.device(),
        "cross-entropy of {} tokens takes {} int64 labels on their device; got {} of {}", logits.size(0),
        logits.size(0), shape_text(labels), c10::toString(labels.scalar_type()));
  check(0 <= range.begin && range.begin <= range.end && range.end <= range.total &&
            range.end - range.begin <= logits.size(1),
        "vocabulary range [{}, {}) of {} does not fit {} columns of logits", range.begin, range.end, range.total,
        logits.size(1));
  check<ConfigError>(options.label_smoothing >= 0 && options.label_smoothing < 1,
                     "label_smoothing is {}; it must be in [0, 1)", options.label_smoothing);
}

// Throws DataError for a label outside the vocabulary. On CUDA a device assertion ends the program instead: reading
// labels back would stall the step.
void check_labels(const at::Tensor& labels, const VocabRange& range, const CrossEntropyOptions& options) {
  if (!labels.is_cpu()) {
    const at::Tensor fine =
        (labels == options.ignore_index).logical_or_((labels >= 0).logical_and_(labels < range.total));
    at::_assert_async(fine.all(), "cross-entropy: a label lies outside the vocabulary");
    return;
  }
  const auto* ids = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    check<DataError>((ids[i] >= 0 && ids[i] < range.total) || ids[i] == options.ignore_index,
                     "the label of token {} is {}; the vocabulary has ids 0 to {}, and {} marks a token without loss",
                     i, ids[i], range.total - 1, options.ignore_index);
}

LogitRows rows_of(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                  const CrossEntropyOptions& options) {
  return {.dtype = logits.scalar_type(),
          .rows = logits.size(0),
          .columns = logits.size(1),
          .valid = range.end - range.begin,
          .distance = logits.stride(0),
          .labels = labels.const_data_ptr<int64_t>(),
          .first_id = range.begin,
          .ignore_index = options.ignore_index};
}

// ---- Without a kernel: ATen's operations, some rows at a time ------------------------------------------------------

constexpr int64_t kChunkElements = int64_t{1} << 26;  // bounds the wide copies of logits: 256 MiB in fp32

// Fills stats [4, t]: rows max, sum, target, total.
void stats_composite(const LogitRows& rows, const at::Tensor& logits, const at::Tensor& labels,
                     const at::Tensor& stats) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, rows.columns));
  stats.zero_();
  if (rows.valid == 0) stats[0].fill_(-std::numeric_limits<double>::infinity());
  for (int64_t i = 0; rows.valid > 0 && i < rows.rows; i += step) {
    const int64_t n = std::min(step, rows.rows - i);
    const at::Tensor x = logits.narrow(0, i, n).narrow(1, 0, rows.valid).to(stats.scalar_type());
    const at::Tensor column = labels.narrow(0, i, n) - rows.first_id;
    const at::Tensor here = (column >= 0).logical_and_(column < rows.valid);
    const at::Tensor picked = x.gather(1, column.clamp(0, rows.valid - 1).unsqueeze(1)).squeeze(1);
    const at::Tensor max = x.amax(1);
    stats[0].narrow(0, i, n).copy_(max);
    stats[1].narrow(0, i, n).copy_((x - max.unsqueeze(1)).exp_().sum(1));
    stats[2].narrow(0, i, n).copy_(at::where(here, picked, 0));
    stats[3].narrow(0, i, n).copy_(x.sum(1));
  }
}

// Overwrites the logits with the gradient, chunk by chunk; log Σ exp is split in two as in the kernels.
void grads_composite(const LogitRows& rows, const at::Tensor& logits, const at::Tensor& labels,
                     const at::Tensor& log_sum_exp, const at::Tensor& grad_loss, const LossWeights& weights) {
  const int64_t step = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, rows.columns));
  const at::Tensor grads = at::where(labels == rows.ignore_index, 0, grad_loss);
  for (int64_t i = 0; i < rows.rows; i += step) {
    const int64_t n = std::min(step, rows.rows - i);
    const at::Tensor part = logits.narrow(0, i, n), x = part.narrow(1, 0, rows.valid);
    const at::Tensor lse = log_sum_exp.narrow(0, i, n).unsqueeze(1), g = grads.narrow(0, i, n).unsqueeze(1);
    const at::Tensor high = lse.to(g.scalar_type()), low = (lse - high).to(g.scalar_type());
    const at::Tensor column = (labels.narrow(0, i, n) - rows.first_id).unsqueeze(1);
    const at::Tensor ids = at::arange(rows.valid, labels.options()).unsqueeze(0);
    at::Tensor grad =
        (x.to(g.scalar_type()) - high - low).exp_().mul_(1 + 2 * weights.z * high).sub_(weights.off_target);
    grad.sub_((ids == column).to(grad.scalar_type()), weights.on_target);
    x.copy_(at::where(g == 0, 0, grad.mul_(g)));
    part.narrow(1, rows.valid, rows.columns - rows.valid).zero_();
  }
}

// --------------------------------------------------------------------------------------------------------------------

// Turns this rank's statistics (max, sum, target, total) into those of the whole vocabulary: first the maximum, to
// which each rank scales its sum, then the sums. stats is [4, t], or [3, t] without the total.
void reduce_over_ranks(const at::Tensor& stats, const comm::Group& tp) {
  if (tp.size() == 1) return;
  const at::Tensor local_max = stats[0].clone();
  tp.all_reduce(stats[0], comm::ReduceOp::kMax, "cross-entropy maximum");
  // A rank without columns has a maximum of -inf and nothing to add; where avoids -inf - -inf.
  const at::Tensor decay = at::exp(local_max - stats[0]);
  stats[1].mul_(at::where(stats[1] == 0, 0, decay));
  tp.all_reduce(stats.narrow(0, 1, stats.size(0) - 1), comm::ReduceOp::kSum, "cross-entropy sums");
}

// Losses and log Σ exp from the statistics of the whole vocabulary, in fp64.
CrossEntropyStats losses_composite(const at::Tensor& stats, const at::Tensor& labels, const LossWeights& weights,
                                   const CrossEntropyOptions& options) {
  const at::Tensor ignored = labels == options.ignore_index;
  const at::Tensor exact = stats.to(at::kDouble), log_sum = at::log(exact[1]);
  const at::Tensor lse = (exact[0] + log_sum).masked_fill_(ignored, 0);
  const at::Tensor loss =
      log_sum + (exact[0] - weights.on_target * exact[2] - weights.off_target * exact[3]) + weights.z * lse.square();
  return {.loss = loss.masked_fill(ignored, 0).to(stats.scalar_type()), .log_sum_exp = lse};
}

void run_stats(const at::Tensor& logits, const LogitRows& rows, const LogitStats& stats) {
  if constexpr (kCudaKernels) {
    if (logits.is_cuda()) return logit_stats_cuda(rows, logits.const_data_ptr(), stats, stream_of(logits));
  }
  logit_stats_cpu(rows, logits.const_data_ptr(), stats);
}

void run_losses(const at::Tensor& logits, const LogitRows& rows, const LogitStats& stats, const LossWeights& weights,
                const CrossEntropyStats& result) {
  auto* log_sum_exp = result.log_sum_exp.mutable_data_ptr<double>();
  void* loss = result.loss.mutable_data_ptr();
  if constexpr (kCudaKernels) {
    if (logits.is_cuda()) return losses_cuda(rows, stats, weights, log_sum_exp, loss, stream_of(logits));
  }
  losses_cpu(rows, stats, weights, log_sum_exp, loss);
}

void run_grads(const at::Tensor& logits, const LogitRows& rows, const at::Tensor& log_sum_exp,
               const at::Tensor& grad_loss, const LossWeights& weights) {
  const auto* lse = log_sum_exp.const_data_ptr<double>();
  if constexpr (kCudaKernels) {
    if (logits.is_cuda())
      return logit_grads_cuda(rows, logits.mutable_data_ptr(), lse, grad_loss.const_data_ptr(), weights,
                              stream_of(logits));
  }
  logit_grads_cpu(rows, logits.mutable_data_ptr(), lse, grad_loss.const_data_ptr(), weights);
}

// Statistics of this rank, two all-reduces over tp, losses: the order every rank of tp follows.
CrossEntropyStats forward(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                          const comm::Group& tp, const CrossEntropyOptions& options) {
  const LogitRows rows = rows_of(logits, labels, range, options);
  const LossWeights weights = weights_of(range, options);
  const auto acc = logits.options().dtype(acc_dtype(logits));
  if (!has_kernel(logits)) {
    const at::Tensor stats = at::empty({4, rows.rows}, acc);
    stats_composite(rows, logits, labels, stats);
    reduce_over_ranks(stats, tp);
    return losses_composite(stats, labels, weights, options);
  }
  const bool smooth = weights.off_target != 0;
  const at::Tensor stats = at::empty({smooth ? 4 : 3, rows.rows}, acc);
  const LogitStats parts{.max = stats[0].mutable_data_ptr(),
                         .sum = stats[1].mutable_data_ptr(),
                         .target = stats[2].mutable_data_ptr(),
                         .total = smooth ? stats[3].mutable_data_ptr() : nullptr};
  run_stats(logits, rows, parts);
  reduce_over_ranks(stats, tp);
  CrossEntropyStats result{.loss = at::empty({rows.rows}, acc),
                           .log_sum_exp = at::empty({rows.rows}, acc.dtype(at::kDouble))};
  run_losses(logits, rows, parts, weights, result);
  return result;
}

// Returns logits with contiguous rows, as the kernels need them.
at::Tensor dense_rows(const at::Tensor& logits) {
  return logits.size(1) <= 1 || logits.stride(1) == 1 ? logits : logits.contiguous();
}

// The logits are kept outside autograd's saved variables, which refuse tensors that are written to afterwards.
struct CrossEntropyState {
  at::Tensor logits;  // without history; undefined once backward has consumed them
  int64_t version;    // autograd's version counter of the logits when they were read
  at::Tensor labels, log_sum_exp;
  VocabRange range;
  CrossEntropyOptions options;
};

// Backward consumes the logits: it may run once, and returns their memory as the gradient.
class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels,
                            const VocabRange& range, const comm::Group& tp, const CrossEntropyOptions& options) {
    CrossEntropyStats stats = ops::forward(logits, labels, range, tp, options);
    save_state(ctx, CrossEntropyState{logits.detach(), logits._version(), labels, stats.log_sum_exp, range, options});
    return stats.loss;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}, {}};
    auto& state = saved_state<CrossEntropyState>(ctx);
    check(state.logits.defined(),
          "backward ran through cross_entropy a second time, but the first has overwritten the logits with their "
          "gradient");
    check(state.logits._version() == state.version,
          "the logits given to cross_entropy were written to before its backward ran; another backward that consumes "
          "them may have done so: give each loss its own logits");
    const at::Tensor logits = std::exchange(state.logits, at::Tensor());
    cross_entropy_backward_(logits, state.labels, state.log_sum_exp, grads[0], state.range, state.options);
    return {logits, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                         const comm::Group& tp, const CrossEntropyOptions& options) {
  check_arguments(logits, labels, range, options);
  const at::Tensor ids = labels.contiguous();
  check_labels(ids, range, options);
  if (needs_gradient({logits})) return CrossEntropyFunction::apply(dense_rows(logits), ids, range, tp, options);
  return forward(dense_rows(logits), ids, range, tp, options).loss;
}

CrossEntropyStats cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                        const comm::Group& tp, const CrossEntropyOptions& options) {
  const at::NoGradGuard no_grad;
  check_arguments(logits, labels, range, options);
  const at::Tensor ids = labels.contiguous();
  check_labels(ids, range, options);
  return forward(dense_rows(logits), ids, range, tp, options);
}

void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& log_sum_exp,
                             const at::Tensor& grad_loss, const VocabRange& range, const CrossEntropyOptions& options) {
  const at::NoGradGuard no_grad;
  check_arguments(logits, labels, range, options);
  check(logits.size(1) <= 1 || logits.stride(1) == 1, "cross_entropy_backward_ takes logits with contiguous rows only");
  check(log_sum_exp.numel() == logits.size(0) && grad_loss.numel() == logits.size(0),
        "cross_entropy_backward_ of {} tokens got {} log-sum-exps and {} gradients", logits.size(0),
        log_sum_exp.numel(), grad_loss.numel());
  const at::Tensor ids = labels.contiguous();
  const at::Tensor lse = log_sum_exp.to(at::kDouble).contiguous();
  const at::Tensor grads = grad_loss.to(acc_dtype(logits)).contiguous();
  const LogitRows rows = rows_of(logits, ids, range, options);
  const LossWeights weights = weights_of(range, options);
  if (has_kernel(logits)) {
    run_grads(logits, rows, lse, grads, weights);
    logits.unsafeGetTensorImpl()->bump_version();  // as ATen's in-place operations do
  } else {
    grads_composite(rows, logits, ids, lse, grads, weights);
  }
}

at::Tensor cross_entropy_with_grad_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                    const comm::Group& tp, const CrossEntropyOptions& options, double grad) {
  const at::NoGradGuard no_grad;
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(logits) && tp.size() == 1 && grad != 0) {
      check_arguments(logits, labels, range, options);
      check(logits.size(1) <= 1 || logits.stride(1) == 1,
            "cross_entropy_with_grad_ takes logits with contiguous rows only");
      const at::Tensor ids = labels.contiguous();
      at::Tensor loss = floats_for(logits, logits.size(0));
      losses_and_grads_cuda(rows_of(logits, ids, range, options), logits.mutable_data_ptr(), grad,
                            weights_of(range, options), loss.mutable_data_ptr(), stream_of(logits));
      return loss;
    }
  }
  const CrossEntropyStats stats = cross_entropy_forward(logits, labels, range, tp, options);
  cross_entropy_backward_(logits, labels, stats.log_sum_exp, at::full_like(stats.loss, grad), range, options);
  return stats.loss;
}

}  // namespace megalith::ops

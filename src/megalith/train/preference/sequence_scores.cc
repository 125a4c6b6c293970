// With context parallelism every rank needs the score of the whole sequence for its value, but may only differentiate
// its own tokens: x + (own - detach(own)) has the value of x and the gradient of `own`.
#include "megalith/train/preference/sequence_scores.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

namespace {

// Sums [t] to [s]; one reduction if all sequences have the same length.
at::Tensor sums_by_sequence(const at::Tensor& values, const data::MicroBatch& batch) {
  const ops::SequenceLayout& layout = batch.layout;
  if (layout.uniform()) return values.view({layout.sequences(), -1}).sum(1).narrow(0, 0, batch.sequences);
  const std::vector<int64_t>& ends = layout.cumulative();
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < static_cast<size_t>(batch.sequences); ++i)
    sums.push_back(values.narrow(0, ends[i], ends[i + 1] - ends[i]).sum());
  return at::stack(sums);
}

}  // namespace

at::Tensor sequence_log_probabilities(const at::Tensor& token_losses, const data::MicroBatch& batch,
                                      const comm::Group& cp, const at::Tensor& weights) {
  const at::Tensor own = -sums_by_sequence(weights.defined() ? token_losses * weights : token_losses, batch);
  if (cp.size() == 1) return own;
  const at::Tensor all = own.detach().clone();
  cp.all_reduce(all, comm::ReduceOp::kSum, "log-probabilities of sequences");
  return all + (own - own.detach());  // value of all ranks, gradient of this rank's part
}

at::Tensor length_weights(const data::MicroBatch& whole, double alpha, const parallel::ParallelContext& context) {
  check(whole.preference && whole.sequences % 2 == 0, "length weights are those of pairs");
  const auto pairs = static_cast<size_t>(whole.sequences / 2);
  const std::vector<int64_t>& ends = whole.layout.cumulative();
  const at::Tensor labels = whole.labels.contiguous();
  const int64_t* label = labels.const_data_ptr<int64_t>();
  at::Tensor weights = at::ones({whole.tokens()}, at::kFloat);
  float* weight = weights.mutable_data_ptr<float>();
  const auto count = [&](size_t row) {
    return std::count_if(label + ends[row], label + ends[row + 1], [](int64_t id) { return id >= 0; });
  };
  for (size_t row = 0; row < 2 * pairs; ++row) {
    int64_t left = std::min(count(row % pairs), count(row % pairs + pairs));
    for (int64_t i = ends[row]; i < ends[row + 1]; ++i)
      if (label[i] >= 0 && left-- <= 0) weight[i] = static_cast<float>(alpha);
  }
  const comm::Group cp = context.cp();
  if (cp.size() > 1) weights = nn::slice_tokens(weights, whole.layout, cp.rank(), cp.size());
  return ops::to_device(weights, context.device());
}

at::Tensor labelled_tokens(const data::MicroBatch& batch) {
  return sums_by_sequence(batch.labels.ge(0).to(at::kFloat), batch).clamp_min(1);
}

}  // namespace megalith::train

// With context parallelism every rank needs the score of the whole sequence for its value, but may only differentiate
// its own tokens: x + (own - detach(own)) has the value of x and the gradient of `own`.
#include "megalith/train/preference/sequence_scores.h"

#include <ATen/ATen.h>

#include <vector>

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
                                      const comm::Group& cp) {
  const at::Tensor own = -sums_by_sequence(token_losses, batch);
  if (cp.size() == 1) return own;
  const at::Tensor all = own.detach().clone();
  cp.all_reduce(all, comm::ReduceOp::kSum, "log-probabilities of sequences");
  return all + (own - own.detach());  // value of all ranks, gradient of this rank's part
}

at::Tensor labelled_tokens(const data::MicroBatch& batch) {
  return sums_by_sequence(batch.labels.ge(0).to(at::kFloat), batch).clamp_min(1);
}

}  // namespace megalith::train

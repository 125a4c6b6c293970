#include "megalith/train/objectives/last_stage.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "megalith/ops/loss/cross_entropy.h"

namespace megalith::train {

namespace {

// logits [t, v/tp], targets [t] -> bool [t].
at::Tensor predictions_right(const at::Tensor& logits, const at::Tensor& targets, const ops::VocabRange& range,
                             const comm::Group& tp) {
  const at::NoGradGuard no_grad;
  const int64_t t = logits.size(0);
  at::Tensor best = at::full({t}, -std::numeric_limits<double>::infinity(), logits.options().dtype(at::kDouble));
  at::Tensor ids = at::full({t}, -1, targets.options());
  if (range.end > range.begin) {
    const auto [value, index] = logits.narrow(1, 0, range.end - range.begin).max(1);
    best = value.to(at::kDouble);
    ids = index + range.begin;
  }
  if (tp.size() > 1) {
    const at::Tensor mine = at::stack({best, ids.to(at::kDouble)});  // ids are exact in fp64
    const at::Tensor all = at::empty({tp.size() * 2, t}, mine.options());
    tp.all_gather(all, mine, "likeliest tokens");
    const at::Tensor by_rank = all.view({tp.size(), 2, t});
    const at::Tensor winner = by_rank.select(1, 0).argmax(0, /*keepdim=*/true);
    ids = by_rank.select(1, 1).gather(0, winner).squeeze(0).to(at::kLong);
  }
  return ids.eq(targets);  // an ignored target is no id
}

}  // namespace

MicrobatchOutput run_last_stage(const model::GptModel& chunk, model::ModelInput input, bool correct) {
  if (!correct || chunk.options().loss_chunk > 0) return {.token_losses = chunk.forward(input)};
  const at::Tensor targets = std::exchange(input.targets, at::Tensor());
  const at::Tensor logits = chunk.forward(input);
  const comm::Group tp = chunk.tensor_parallel().group;
  MicrobatchOutput output;
  output.correct = predictions_right(logits, targets, chunk.vocab_range(), tp);
  output.token_losses = ops::cross_entropy(logits, targets, chunk.vocab_range(), tp, chunk.options().loss);
  return output;
}

}  // namespace megalith::train

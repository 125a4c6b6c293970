// With context parallelism the last token of a sequence is on one rank. The others add zeros: all get the value of
// every sequence by a sum over the ranks, and each differentiates its own tokens, x + (own - detach(own)).
#include "megalith/train/scoring/sequence_labels.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/data/sample.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

namespace {

// The labelled tokens of a micro-batch, by their number, and the sequences that they belong to; both in the memory of
// the host.
struct LabelledTokens {
  std::vector<int64_t> tokens, sequences;
};

LabelledTokens labelled_tokens_of(const data::MicroBatch& batch) {
  const at::Tensor labels = batch.labels.contiguous();
  const int64_t* label = labels.const_data_ptr<int64_t>();
  const std::vector<int64_t>& ends = batch.layout.cumulative();
  LabelledTokens found;
  for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
    const auto number = static_cast<size_t>(sequence);
    for (int64_t token = ends[number]; token < ends[number + 1]; ++token) {
      if (label[token] == data::kIgnoredLabel) continue;
      found.tokens.push_back(token);
      found.sequences.push_back(sequence);
    }
  }
  return found;
}

at::Tensor on_device(const std::vector<int64_t>& numbers, at::Device device) {
  return ops::to_device(at::tensor(numbers, at::kLong), device);
}

// loss_tokens is known on every stage, so that all ranks of a replica refuse the same micro-batches. A micro-batch
// without samples, which fills up a group of an evaluation, is a copy whose counts are 0.
void check_labels(const data::MicroBatch& batch) {
  check<DataError>(batch.samples == 0 || batch.loss_tokens == batch.sequences,
                   "a micro-batch has {} labels for {} sequences: its rows were made for another stage. Stages rm and"
                   " cls take one label per text, and make such rows of files (dataset); remove tokenized_path, or give"
                   " that of such a stage",
                   batch.loss_tokens, batch.sequences);
}

}  // namespace

at::Tensor scores_of_sequences(const at::Tensor& token_scores, const data::MicroBatch& batch, const comm::Group& cp) {
  const LabelledTokens labelled = labelled_tokens_of(batch);
  const at::Device device = token_scores.device();
  const at::Tensor here = token_scores.index_select(0, on_device(labelled.tokens, device));
  const at::Tensor own = at::zeros({batch.sequences, token_scores.size(1)}, token_scores.options())
                             .index_add(0, on_device(labelled.sequences, device), here);
  if (cp.size() == 1) return own;
  const at::Tensor all = own.detach().clone();
  cp.all_reduce(all, comm::ReduceOp::kSum, "scores of sequences");
  return all + (own - own.detach());
}

std::vector<at::Tensor> labels_of_sequences(std::span<const data::MicroBatch> batches,
                                            const parallel::ParallelContext& context) {
  std::ranges::for_each(batches, check_labels);
  std::vector<at::Tensor> labels;
  if (!context.is_last_stage()) return labels;
  for (const data::MicroBatch& batch : batches) {
    const at::Tensor tokens = at::tensor(labelled_tokens_of(batch).tokens, at::kLong);
    labels.push_back(ops::to_device(batch.labels.index_select(0, tokens), context.device()));
  }
  return labels;
}

at::Tensor numbers_in(const at::Tensor& labels) { return labels.to(at::kInt).view(at::kFloat); }

void ScoringObjective::begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) {
  labels_ = labels_of_sequences(batches, context_);
}

model::ModelInput ScoringObjective::inputs(const data::MicroBatch& batch, const model::GptModel& chunk,
                                           at::Tensor hidden, Phase phase) const {
  model::ModelInput input = Objective::inputs(batch, chunk, std::move(hidden), phase);
  input.targets = at::Tensor();
  return input;
}

at::Tensor ScoringObjective::scores(const MicrobatchOutput& output, const data::MicroBatch& batch) const {
  return scores_of_sequences(output.token_losses, batch, context_.cp());
}

// All context-parallel ranks compute the same loss, each with the gradient of its own tokens only. What they report is
// summed, so each reports 1/cp of the value and keeps its whole gradient.
MicrobatchLoss ScoringObjective::reported(const at::Tensor& sum, int64_t count) const {
  const int cp = context_.cp().size();
  return {.sum = cp > 1 ? sum - sum.detach() * (1 - 1.0 / cp) : sum, .count = count, .metrics = {}};
}

}  // namespace megalith::train

// The scores of whole sequences, taken from those of their tokens, and their labels. Every sequence has a label at its
// last token and nowhere else (data/scored_rows.h).
//
// Legend: t tokens of a micro-batch on this rank (its context-parallel slice), s its sequences, without the one that
// pads the total, n labels of the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/data/micro_batch.h"
#include "megalith/model/gpt_model.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/train/objectives/objective.h"

namespace megalith::train {

// Returns the scores of each sequence, fp32 [s, n], from those of all tokens, fp32 [t, n]; bitwise the same on all
// ranks of `cp`. `batch` is this rank's slice. Backward reaches this rank's tokens only: the gradient of a loss of the
// result is complete once those of all context-parallel ranks are summed. Collective over cp.
at::Tensor scores_of_sequences(const at::Tensor& token_scores, const data::MicroBatch& batch, const comm::Group& cp);

// Returns the labels of the sequences of each (whole) micro-batch, int64 [s] on the device of the context, on the last
// stage; an empty list on others. Throws a DataError, on every rank, for rows that are not scored ones.
std::vector<at::Tensor> labels_of_sequences(std::span<const data::MicroBatch> batches,
                                            const parallel::ParallelContext& context);

// Returns the numbers whose bits labels are (data::label_of_number): int64 [s] -> fp32 [s].
at::Tensor numbers_in(const at::Tensor& labels);

// Objective of a model that scores sequences: it runs without targets, so that the head returns scores.
class ScoringObjective : public Objective {
 public:
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return false; }
  bool trains_attached() const override { return false; }
  // Throws like labels_of_sequences.
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;
  model::ModelInput inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                           Phase phase) const override;

 protected:
  // `context` outlives the objective.
  explicit ScoringObjective(const parallel::ParallelContext& context) : context_(context) {}

  // The labels of a micro-batch of begin(), and the scores that its pass has given; on the last stage.
  const at::Tensor& labels(int microbatch) const { return labels_.at(static_cast<size_t>(microbatch)); }
  at::Tensor scores(const MicrobatchOutput& output, const data::MicroBatch& batch) const;
  // Returns the loss of a micro-batch from the sum over its `count` items, as what this context-parallel rank reports.
  MicrobatchLoss reported(const at::Tensor& sum, int64_t count) const;
  // Whether this rank reports the metrics of its micro-batches.
  bool reports() const { return context_.cp().rank() == 0; }

 private:
  const parallel::ParallelContext& context_;
  std::vector<at::Tensor> labels_;
};

}  // namespace megalith::train

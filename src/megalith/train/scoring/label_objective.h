// LabelObjective: training on labels of texts (transformers' ForSequenceClassification losses). All it takes is a
// Trainer with this objective, a model that scores sequences (families/scores.h) and a dataset of labelled rows.
//
//   regression                   (score - label)²
//   single_label_classification  cross-entropy of the scores with the class
//   multi_label_classification   mean over the classes of the binary cross-entropy of a score with yes or no
//
// The loss of a micro-batch is the mean over its texts; with calculate_per_token_loss, that of a step is the mean over
// all texts of the step. Log lines also report accuracy, the share of texts whose label is the largest score or, with
// several labels, all of whose labels are on the right side of 0; a regression has none.
#pragma once

#include <string>
#include <vector>

#include "megalith/train/scoring/sequence_labels.h"
#include "megalith/train/settings/scoring_settings.h"

namespace megalith::train {

// One thread per rank.
class LabelObjective : public ScoringObjective {
 public:
  // `context` outlives the objective.
  LabelObjective(const LabelSettings& how, const parallel::ParallelContext& context)
      : ScoringObjective(context), how_(how) {}

  std::vector<std::string> metrics_keys(Phase phase) const override;
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase phase) const override;

 private:
  const LabelSettings how_;
};

}  // namespace megalith::train

// RewardObjective: training reward models on pairs of answers (trl's RewardTrainer, LLaMA-Factory's stage rm). All it
// takes is a Trainer with this objective, a model with one score (families/scores.h) and a dataset of scored pairs.
//
// With r the score of an answer (_c chosen, _w rejected), m the margin of the pair and γ center_rewards_coefficient:
//
//   loss = -log σ(r_c - r_w - m) + γ (r_c + r_w)²
//
// The loss of a micro-batch is the mean over its pairs. Log lines also report, with trl's names, accuracy (share of
// pairs with chosen above rejected), margin (r_c - r_w) and mean_reward, as means over the pairs, and min_reward and
// max_reward, as means over the micro-batches.
#pragma once

#include <string>
#include <vector>

#include "megalith/train/scoring/sequence_labels.h"
#include "megalith/train/settings/scoring_settings.h"

namespace megalith::train {

// One thread per rank.
class RewardObjective : public ScoringObjective {
 public:
  // `context` outlives the objective.
  RewardObjective(const RewardSettings& how, const parallel::ParallelContext& context)
      : ScoringObjective(context), how_(how) {}

  std::vector<std::string> metrics_keys(Phase phase) const override;
  // Throws InternalError for micro-batches that are not pairs, and like ScoringObjective.
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase phase) const override;

 private:
  const RewardSettings how_;
};

}  // namespace megalith::train

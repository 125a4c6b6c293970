#include "megalith/train/scoring/reward_objective.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::train {

std::vector<std::string> RewardObjective::metrics_keys(Phase /*phase*/) const {
  return {"accuracy", "margin", "mean_reward", "min_reward", "max_reward"};
}

void RewardObjective::begin(std::span<const data::MicroBatch> batches, Phase phase) {
  check(std::ranges::all_of(batches, &data::MicroBatch::preference),
        "rewards are trained on pairs, but the data has single rows");
  ScoringObjective::begin(batches, phase);
}

MicrobatchLoss RewardObjective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                                     Phase /*phase*/) const {
  const int64_t pairs = batch.samples;
  const at::Tensor rewards = scores(output, batch).squeeze(1);
  const at::Tensor chosen = rewards.narrow(0, 0, pairs), rejected = rewards.narrow(0, pairs, pairs);
  const at::Tensor margins = numbers_in(labels(microbatch)).narrow(0, 0, pairs);
  at::Tensor losses = -at::log_sigmoid(chosen - rejected - margins);
  if (how_.center_coefficient > 0) losses = losses + (chosen + rejected).square() * how_.center_coefficient;
  MicrobatchLoss result = reported(losses.sum(), pairs);
  if (!reports()) return result;
  const auto report = [&](const char* name, const at::Tensor& sum, int64_t weight) {
    result.metrics.push_back({name, sum.detach(), static_cast<double>(weight)});
  };
  report("accuracy", chosen.gt(rejected).to(at::kFloat).sum(), pairs);
  report("margin", (chosen - rejected).sum(), pairs);
  report("mean_reward", rewards.sum(), 2 * pairs);
  report("min_reward", rewards.min(), 1);
  report("max_reward", rewards.max(), 1);
  return result;
}

}  // namespace megalith::train

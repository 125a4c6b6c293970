// Multi-token prediction through the trainer: what is reported, and what it adds to the gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/train/objectives/objective.h"
#include "tests/pipeline/latent_reference.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

std::vector<data::Sequence> labelled(const std::vector<std::vector<int32_t>>& rows) {
  std::vector<data::Sequence> sequences;
  for (const auto& ids : rows) sequences.push_back({.ids = ids, .labels = ids});
  return sequences;
}

TEST(MultiTokenPrediction, IsReportedAndTrained) {
  const LatentReference reference({.mtp = 2}, 3);
  const TempFolder folder;
  reference.save(folder.path());
  const std::vector<std::vector<int32_t>> rows{{5, 40, 17, 3, 9, 22, 31, 8, 2, 44}, {7, 7, 30, 12, 1, 26}};
  at::Tensor main = at::zeros({}, at::kDouble), first = main, second = main;
  for (const auto& row : rows) {
    const auto losses = reference.losses(at::tensor(std::vector<int64_t>(row.begin(), row.end()), at::kLong));
    main = main + losses.main;
    first = first + losses.mtp[0];
    second = second + losses.mtp[1];
  }
  const double count = 14, count1 = 12, count2 = 10;  // tokens with something one, two and three places ahead
  const double factor = 0.3;
  for (const bool per_token : {true, false}) {
    SCOPED_TRACE(per_token ? "per token" : "means");
    const at::Tensor further = per_token ? (first + second) / count : first / count1 + second / count2;
    for (const auto& [name, parameter] : reference.parameters()) parameter.mutable_grad() = at::Tensor();
    (main / count + further * (factor / 2)).backward({}, /*retain_graph=*/true);
    double square = 0;
    for (const auto& [name, parameter] : reference.parameters()) square += parameter.grad().pow(2).sum().item<double>();
    for (const int pp : {1, 2}) {
      TrainerCase how{.name = "pp", .pp = pp};
      how.args.run.max_steps = 2;
      how.args.batch.micro_batch_size = 2;
      how.args.ddp.calculate_per_token_loss = per_token;
      how.args.shape.mtp_loss_scaling_factor = factor;
      const RunLog run = run_training(folder.path(), how, labelled(rows), labelled(rows));
      expect_close(run.numbers("loss").at(0), main.item<double>() / count, "loss");
      expect_close(run.numbers("mtp_1_loss").at(0), first.item<double>() / count1, "mtp_1_loss");
      expect_close(run.numbers("mtp_2_loss").at(0), second.item<double>() / count2, "mtp_2_loss");
      expect_close(run.numbers("grad_norm").at(0), std::sqrt(square), "grad_norm");
      EXPECT_LT(run.numbers("mtp_1_loss").at(1), run.numbers("mtp_1_loss").at(0));
    }
  }
}

TEST(MultiTokenPrediction, CountsTheTargetsOfEachDepthWithinSequences) {
  data::MicroBatch batch;
  batch.labels = at::tensor({1, -100, 3, 4, 5, 6, -100}, at::kLong);
  batch.layout = ops::SequenceLayout::from_cumulative({0, 4, 6, 7});
  model::ModelConfig config;
  config.mtp_layers = 3;
  const std::vector<at::Tensor> token_losses(3, at::zeros({7}));
  const auto losses = train::mtp_losses(config, token_losses, batch);
  ASSERT_EQ(losses.size(), 3U);
  at::Tensor shifted = batch.labels;
  for (const train::AttachedLoss& loss : losses) {
    shifted = model::shift_labels(shifted, batch.layout);
    EXPECT_EQ(loss.count, shifted.ge(0).sum().item<int64_t>()) << loss.name;
  }
  EXPECT_EQ(losses[0].count, 3);
  EXPECT_EQ(losses[1].count, 2);
  EXPECT_EQ(losses[2].count, 1);
}

}  // namespace
}  // namespace megalith::testing

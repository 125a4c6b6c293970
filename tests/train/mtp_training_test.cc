// Multi-token prediction through the trainer: what is reported, and what it adds to the gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/nn/context_parallel/slice.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/step/rank_microbatches.h"
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
    for (const auto& [pp, cp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2), std::pair(1, 4)}) {
      SCOPED_TRACE(fmt::format("pp {}, cp {}", pp, cp));
      TrainerCase how{.name = "pp cp", .pp = pp, .cp = cp};
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
  batch.ids = at::zeros({7}, at::kLong);
  const std::vector<at::Tensor> token_losses(3, at::zeros({7}));
  const auto losses =
      train::mtp_losses(config, token_losses, train::rank_microbatches({&batch, 1}, {.mtp_layers = 3}).at(0));
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

// A token at the end of a chunk reads those of the next chunk, which another rank may hold; none reads past the end of
// its sequence. Counts are those of the whole on every rank.
TEST(MultiTokenPrediction, TokensAheadCrossTheBordersOfSlices) {
  data::MicroBatch batch;
  batch.layout = ops::SequenceLayout::packed({16, 8, 8});
  batch.ids = at::arange(100, 132, at::kLong);
  batch.labels = at::arange(101, 133, at::kLong);
  const auto at_place = [&](int64_t first, int64_t length, int64_t place, int64_t depth, int64_t past_end) {
    return place + depth < length ? first + place + depth : past_end;
  };
  std::vector<int64_t> ids[2], labels[2];
  for (const auto& [first, length] : {std::pair(100, 16), std::pair(116, 8), std::pair(124, 8)})
    for (int64_t place = 0; place < length; ++place)
      for (const int64_t depth : {1, 2}) {
        ids[depth - 1].push_back(at_place(first, length, place, depth, 0));
        labels[depth - 1].push_back(at_place(first + 1, length, place, depth, -100));
      }
  for (const int cp : {1, 2, 4})
    for (int rank = 0; rank < cp; ++rank) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, cp));
      const data::MicroBatch own =
          train::rank_microbatches({&batch, 1}, {.cp_rank = rank, .cp = cp, .mtp_layers = 2}).at(0);
      ASSERT_EQ(own.further.size(), 2U);
      for (const size_t depth : {0, 1}) {
        const auto slice = [&](const std::vector<int64_t>& whole) {
          return nn::slice_tokens(at::tensor(whole, at::kLong), batch.layout, rank, cp);
        };
        expect_identical(own.further[depth].ids, slice(ids[depth]), "ids");
        expect_identical(own.further[depth].labels, slice(labels[depth]), "labels");
        EXPECT_EQ(own.further[depth].loss_tokens, 32 - 3 * static_cast<int64_t>(depth + 1));
      }
    }
}

}  // namespace
}  // namespace megalith::testing

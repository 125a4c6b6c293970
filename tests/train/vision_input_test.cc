// Images of a micro-batch on their way to the model: the chunk with the embedding gets them, and the loss depends on
// them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/data/micro_batch.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/gpt_model.h"
#include "megalith/train/objectives/objective.h"
#include "tests/support/run_ranks.h"
#include "tests/support/seeing_model.h"

namespace megalith::testing {
namespace {

model::ModelConfig model_that_sees() {
  return seeing_model(
      {.depth = 1, .width = 8, .heads = 2, .mlp_width = 8, .out_width = kSeeingWidth, .patch = 2, .init_std = 0.3});
}

// One sequence of eight tokens; tokens 2 … 5 are an image of 4 x 4 patches.
data::MicroBatch batch_with_image() {
  data::MicroBatch batch;
  batch.ids = at::arange(8, at::kLong);
  batch.labels = at::arange(1, 9, at::kLong);
  batch.layout = ops::SequenceLayout::dense(1, 8);
  batch.samples = batch.sequences = 1;
  batch.real_tokens = batch.loss_tokens = 8;
  batch.pixels = at::randn({16, 24}, at::detail::createCPUGenerator(1), at::kFloat);
  batch.grids = at::tensor({1, 4, 4}, at::kLong).view({1, 3});
  batch.visual_rows = at::tensor({-1, -1, 0, 1, 2, 3, -1, -1}, at::kLong);
  return batch;
}

TEST(VisionInput, OfTheChunkWithTheEmbedding) {
  run_ranks(1, [](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const model::ModelConfig config = model_that_sees();
    const model::GptModel first(config, {}, {0, 1, true, false}, context),
        last(config, {}, {1, 1, false, true}, context);
    const train::Objective objective;
    const data::MicroBatch batch = batch_with_image();
    const model::ModelInput seen = objective.inputs(batch, first, {}, train::Phase::kTraining);
    EXPECT_TRUE(seen.pixels.equal(batch.pixels));
    EXPECT_TRUE(seen.grids.equal(batch.grids));
    EXPECT_TRUE(seen.visual_rows.equal(batch.visual_rows));
    const model::ModelInput later = objective.inputs(batch, last, {}, train::Phase::kTraining);
    EXPECT_FALSE(later.pixels.defined());
    EXPECT_FALSE(later.grids.defined());
  });
}

TEST(VisionInput, ReachesTheLoss) {
  run_ranks(1, [](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    context.rng().seed(layout::seeds_for_base(1, 0, 0, 0));
    const model::ModelConfig config = model_that_sees();
    const model::GptModel whole(config, {}, model::ChunkPlace::whole(config), context);
    whole.initialize_parameters(1);
    const train::Objective objective;
    const auto loss = [&](const data::MicroBatch& batch) {
      return objective.run_head(batch, whole, {}, 0, train::Phase::kTraining).sum.item<double>();
    };
    data::MicroBatch batch = batch_with_image();
    const double with_image = loss(batch);
    batch.ids.narrow(0, 2, 4).fill_(19);
    EXPECT_EQ(loss(batch), with_image) << "placeholders";
    batch.pixels = batch.pixels + 1;
    EXPECT_NE(loss(batch), with_image) << "pixels";
    batch.pixels = batch.grids = batch.visual_rows = at::Tensor();
    EXPECT_NE(loss(batch), with_image) << "text alone";
  });
}

}  // namespace
}  // namespace megalith::testing

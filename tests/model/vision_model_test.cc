// Models with a vision tower in several layouts against one rank: losses and the gradient of every parameter, in fp32.
// Micro-batches have 0, 1, 2 and 5 images; with data parallelism one rank has none.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/block_parts.h"
#include "megalith/model/gpt_model.h"
#include "megalith/model/virtual_models.h"
#include "megalith/model/vision_part.h"
#include "megalith/nn/context_parallel/slice.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/seeing_model.h"

namespace megalith::testing {
namespace {

constexpr int64_t kLength = 32;  // tokens of a sequence

nn::VisionShape deepstack_tower() {
  return {.depth = 3,
          .width = 16,
          .heads = 2,
          .mlp_width = 24,
          .out_width = 16,
          .patch = 2,
          .activation = ops::Activation::kGeluTanh,
          .patch_bias = true,
          .positions = 16,
          .deepstack_blocks = {0, 2},
          .init_std = 0.3};
}
nn::VisionShape windowed_tower() {
  return {.depth = 2,
          .width = 16,
          .heads = 2,
          .mlp_width = 24,
          .out_width = 16,
          .patch = 2,
          .norm = ops::NormKind::kRms,
          .activation = ops::Activation::kSilu,
          .gated_mlp = true,
          .window = 8,
          .full_blocks = {1},
          .init_std = 0.3};
}

// Two sequences; all images are in the first one, text around each.
struct Batch {
  std::vector<nn::ImageGrid> grids;
  at::Tensor pixels, grid_tensor, ids, targets, visual_rows;  // for both sequences
};
Batch make_batch(int images) {
  static const std::vector<nn::ImageGrid> all{{1, 4, 6}, {1, 2, 4}, {2, 2, 2}, {1, 4, 4}, {1, 2, 2}};
  Batch batch;
  batch.grids.assign(all.begin(), all.begin() + images);
  at::Generator numbers = at::detail::createCPUGenerator(7);
  batch.pixels = at::randn({nn::total_patches(batch.grids), 24}, numbers, at::kFloat);
  batch.ids = at::randint(0, 40, {2 * kLength}, numbers, at::kLong);
  batch.targets = at::randint(0, 40, {2 * kLength}, numbers, at::kLong);
  batch.visual_rows = at::full({2 * kLength}, -1, at::kLong);
  batch.grid_tensor = at::empty({images, 3}, at::kLong);
  int64_t token = 1, row = 0;
  for (int i = 0; i < images; ++i) {
    const nn::ImageGrid& grid = batch.grids[static_cast<size_t>(i)];
    batch.grid_tensor[i] = at::tensor({grid.time, grid.height, grid.width}, at::kLong);
    for (int64_t k = 0; k < grid.patches() / 4; ++k) {
      batch.targets[token] = -100;
      batch.visual_rows[token++] = row++;
    }
    ++token;
  }
  return batch;
}

struct Layout {
  int tp = 1, cp = 1, dp = 1;
  bool sequence_parallel = false;
  bool recompute = false;
  bool main_grad = false;
  bool in_pieces = false;  // two chunks one after the other, as pipeline stages run them
  std::string name() const {
    return fmt::format("tp {} cp {} dp {}{}{}{}{}", tp, cp, dp, sequence_parallel ? " sp" : "",
                       recompute ? " recompute" : "", main_grad ? " main_grad" : "", in_pieces ? " two chunks" : "");
  }
};

struct Result {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // whole, by our names; zeros where a parameter was not used
};

at::Tensor summed_gradient(const nn::Parameter& parameter, const parallel::ParallelContext& context) {
  at::Tensor grad = at::zeros(parameter.value.sizes());
  if (parameter.grad.main_grad.defined() && !parameter.grad.stale) grad += parameter.grad.main_grad;
  if (parameter.value.grad().defined()) grad += parameter.value.grad();
  if (parameter.spec.partial_grad_over_tp) context.tp().all_reduce(grad);
  context.dp(/*with_cp=*/true).all_reduce(grad);
  return grad;
}

Result run(const model::ModelConfig& config, const Batch& whole, const Layout& layout,
           const model::FreezePlan& freeze = {}) {
  Result result;
  std::mutex mutex;
  run_ranks(layout.tp * layout.cp * layout.dp, [&](const Rank& r) {
    parallel::ParallelContext context(r.world,
                                      layout::RankGrid({.world_size = r.size, .tp = layout.tp, .cp = layout.cp}));
    const comm::Group cp = context.cp(), dp = context.dp();
    context.rng().seed(layout::seeds_for_base(1, context.tp().rank(), 0, 0));
    model::ModelOptions options;
    options.sequence_parallel = layout.sequence_parallel;
    options.freeze = freeze;
    if (layout.recompute) options.recompute = {.layers = model::RecomputePlan::Layers::kUniform, .num_layers = 3};
    std::vector<model::ChunkPlace> places{model::ChunkPlace::whole(config)};
    if (layout.in_pieces) places = {{0, 3, true, false}, {3, config.num_layers - 3, false, true}};
    model::VirtualModels models(config, options, places, context);
    for (size_t i = 0; i < places.size(); ++i) models[i].initialize_parameters(3);
    for (nn::Parameter* parameter : models.parameters()) {
      if (!layout.main_grad || !parameter->value.requires_grad()) continue;
      parameter->grad.main_grad = at::full(parameter->value.sizes(), NAN, at::kFloat);  // to be overwritten
      parameter->grad.stale = true;
    }
    // A data-parallel rank has one of the two sequences; the images belong to the first.
    const int64_t sequences = 2 / layout.dp, first = dp.rank() * sequences * kLength;
    const auto sequence_layout = ops::SequenceLayout::dense(sequences, kLength);
    const auto slice = [&](const at::Tensor& x) {
      return nn::slice_tokens(x.narrow(0, first, sequences * kLength), sequence_layout, cp.rank(), cp.size());
    };
    model::ModelInput input{.layout = nn::slice_layout(sequence_layout, cp.rank(), cp.size()),
                            .ids = slice(whole.ids),
                            .targets = slice(whole.targets)};
    if (!whole.grids.empty() && dp.rank() == 0) {
      input.pixels = whole.pixels;
      input.grids = whole.grid_tensor;
      input.visual_rows = slice(whole.visual_rows);
    }
    at::Tensor out;
    for (size_t i = 0; i < places.size(); ++i) {
      input.hidden = out;
      out = models[i].forward(input);
    }
    at::Tensor loss = out.sum();
    loss.backward();
    loss = loss.detach().clone();
    context.dp(/*with_cp=*/true).all_reduce(loss);
    for (nn::Parameter* parameter : models.parameters()) {
      const at::Tensor grad = summed_gradient(*parameter, context);
      const std::lock_guard lock(mutex);
      result.loss = loss.item<double>();
      for (const auto& part : parameter->sharded(grad)) {
        auto& full = result.gradients[part.name];
        if (!full.defined()) full = at::full(part.global_shape, NAN);
        at::Tensor target = full;
        for (size_t d = 0; d < part.offset.size(); ++d)
          target = target.narrow(static_cast<int64_t>(d), part.offset[d], part.local.size(static_cast<int64_t>(d)));
        target.copy_(part.local);
      }
    }
  });
  return result;
}

void expect_equal(const Result& actual, const Result& expected) {
  expect_close(actual.loss, expected.loss, "loss");
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients)
    expect_close(actual.gradients.at(name), gradient, "gradient of " + name);
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{{.tp = 2},
                                       {.tp = 2, .sequence_parallel = true},
                                       {.cp = 2},
                                       {.tp = 2, .cp = 2},
                                       {.tp = 2, .cp = 2, .sequence_parallel = true},
                                       {.dp = 2},
                                       {.tp = 2, .dp = 2, .sequence_parallel = true},
                                       {.tp = 4, .sequence_parallel = true},
                                       {.recompute = true},
                                       {.main_grad = true},
                                       {.in_pieces = true},
                                       {.tp = 2, .sequence_parallel = true, .recompute = true, .main_grad = true},
                                       {.tp = 2, .cp = 2, .recompute = true, .in_pieces = true}};
  return all;
}

class VisionModel : public ::testing::TestWithParam<int> {};

TEST_P(VisionModel, EveryLayoutEqualsOneRank) {
  for (const bool deepstack : {true, false}) {
    SCOPED_TRACE(deepstack ? "deepstack" : "windows");
    const model::ModelConfig config = seeing_model(deepstack ? deepstack_tower() : windowed_tower());
    const Batch batch = make_batch(GetParam());
    const Result expected = run(config, batch, {});
    // The tower is used if there are images, and only then.
    for (const auto& [name, gradient] : expected.gradients)
      if (name.starts_with("vision.")) {
        EXPECT_EQ(gradient.abs().max().item<double>() > 0, GetParam() > 0) << name;
      }
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(layout.name());
      expect_equal(run(config, batch, layout), expected);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Images, VisionModel, ::testing::Values(0, 1, 2, 5));

// Rows replace embeddings: what the embedding holds for such tokens does not matter, and it gets no gradient from them.
TEST(VisionModelRows, ReplaceEmbeddings) {
  const model::ModelConfig config = seeing_model(deepstack_tower());
  Batch batch = make_batch(2);
  const at::Tensor visual = batch.visual_rows >= 0;
  batch.ids.masked_fill_(visual, 5).masked_fill_(visual.logical_not().logical_and(batch.ids == 5), 6);
  const Result five = run(config, batch, {});
  EXPECT_EQ(five.gradients.at("embedding.weight")[5].abs().max().item<double>(), 0);
  batch.ids.masked_fill_(visual, 7);
  expect_close(run(config, batch, {}).loss, five.loss, "loss", 0);
}

// Each level of deepstack reaches the loss by itself.
TEST(VisionModelRows, DeepstackIsAdded) {
  const Batch batch = make_batch(2);
  model::ModelConfig config = seeing_model(deepstack_tower());
  const Result both = run(config, batch, {});
  for (const char* level : {"vision.deepstack.0.down.weight", "vision.deepstack.1.down.weight"})
    EXPECT_GT(both.gradients.at(level).abs().max().item<double>(), 0) << level;
  config.vision->deepstack_blocks.clear();
  EXPECT_GT(std::abs(run(config, batch, {}).loss - both.loss), 1e-3);
}

// Frozen parts get no gradient; the others get the same one.
TEST(VisionModelRows, FrozenPartsDoNotChangeTheOthers) {
  const model::ModelConfig config = seeing_model(deepstack_tower());
  const Batch batch = make_batch(2);
  const Result all = run(config, batch, {});
  const std::vector<model::FreezePlan> plans{
      {.vision_tower = true, .projector = true}, {.vision_tower = true}, {.projector = true}, {.language_model = true}};
  for (const model::FreezePlan& freeze : plans)
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(layout.name());
      const Result part = run(config, batch, layout, freeze);
      expect_close(part.loss, all.loss, "loss");
      for (const auto& [name, gradient] : part.gradients)
        expect_close(gradient, freeze.freezes(name) ? at::zeros_like(gradient) : all.gradients.at(name), name);
    }
}

TEST(VisionModelRows, DeepstackLayersMustBeOnTheFirstChunk) {
  run_ranks(1, [](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    try {
      const model::GptModel chunk(seeing_model(deepstack_tower()), {}, {0, 1, true, false}, context);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "the first pipeline chunk has only 1");
      expect_contains(error.what(), "Use at most 2 pipeline chunks");
    }
  });
}

TEST(VisionModelConfig, ProblemsAndDifferences) {
  const model::ModelConfig config = seeing_model(deepstack_tower());
  EXPECT_TRUE(model::problems(config).empty());
  model::ModelConfig other = config;
  other.vision->init_std = 1;
  EXPECT_TRUE(model::differences(config, other).empty());
  other.vision->depth = 4;
  EXPECT_EQ(model::differences(config, other), std::vector<std::string>{"vision tower"});
  other.vision.reset();
  EXPECT_EQ(model::differences(config, other), std::vector<std::string>{"vision tower"});
  other = config;
  other.vision->out_width = 8;
  ASSERT_EQ(model::problems(other).size(), 1U);
  expect_contains(model::problems(other)[0], "8 columns, but the model has a width of 16");
  other = config;
  other.num_layers = 1;
  ASSERT_EQ(model::problems(other).size(), 1U);
  expect_contains(model::problems(other)[0], "adds rows after 2 layers, but there are only 1");
}

// A replay would show the model the images that were recorded.
TEST(VisionModelConfig, IsNotRecordedIntoAGraph) {
  model::ModelConfig config = seeing_model(deepstack_tower());
  expect_contains(model::capture_problem(config), "images");
  config.vision.reset();
  EXPECT_EQ(model::capture_problem(config), "");
}

TEST(VisionModelRows, ImagesNeedATower) {
  run_ranks(1, [](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    model::ModelConfig config = seeing_model(deepstack_tower());
    config.vision.reset();
    const model::GptModel whole(config, {}, model::ChunkPlace::whole(config), context);
    whole.initialize_parameters(1);
    const Batch batch = make_batch(1);
    const model::ModelInput input{.layout = ops::SequenceLayout::dense(2, kLength),
                                  .ids = batch.ids,
                                  .pixels = batch.pixels,
                                  .grids = batch.grid_tensor,
                                  .visual_rows = batch.visual_rows};
    EXPECT_THROW(whole.forward(input), ConfigError);
  });
}

}  // namespace
}  // namespace megalith::testing

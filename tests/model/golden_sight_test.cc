// The golden models that see and hear, as a whole: towers, mrope and decoder against what transformers computes for
// batches with images, videos, sounds and text alone, in every layout of tensor, sequence and context parallelism.
//
// Tolerances as in golden_test.cc.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "megalith/model/families/family.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/golden_media.h"
#include "tests/support/golden_model.h"

namespace megalith::testing {
namespace {

class GoldenHfSight : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    media_ = read_golden_media(GetParam());
    const auto type = media_.config.at("model_type").get<std::string>();
    if (!model_type_supported(type)) GTEST_SKIP() << GetParam() << ": model type " << type << " is not supported";
    golden_ = read_golden_model(GetParam());
    config_ = model::read_model_config(golden_.folder);
    ASSERT_TRUE(config_.vision.has_value());
    if (config_.delta_net) tolerance_ = 2 * kClose;
  }

  TokenBatch batch_of(const GoldenMediaBatch& batch) const {
    const int64_t rows = batch.input_ids.size(0), length = batch.input_ids.size(1);
    std::vector<int64_t> all(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) all[static_cast<size_t>(row)] = row;
    const GoldenPixels media = golden_pixels(batch, all, media_.settings.merge);
    return {
        .ids = batch.input_ids.view({-1}),
        .labels = batch.labels.view({-1}),
        .layout =
            ops::SequenceLayout::dense(rows, length).with_coordinates(batch.position_ids.reshape({3, -1}).contiguous()),
        .loss_scale = 1.0 / static_cast<double>(batch.num_label_tokens),
        .pixels = media.pixels,
        .grids = media.grids,
        .visual_rows = media.visual_rows.view({-1}),
        .audio_features = media.audio_features,
        .audio_lengths = media.audio_lengths,
        .audio_rows = media.audio_rows.defined() ? media.audio_rows.view({-1}) : at::Tensor()};
  }

  std::vector<LayoutCase> layouts(const TokenBatch& batch) const {
    std::vector<LayoutCase> all{
        {},        {.tp = 2, .sequence_parallel = true},         {.tp = 4, .sequence_parallel = true}, {.cp = 2},
        {.cp = 4}, {.tp = 2, .cp = 2, .sequence_parallel = true}};
    if (!config_.moe) all.push_back({.tp = 2});
    LayoutCase again{.tp = 2, .sequence_parallel = true, .main_grad = true};
    again.options.recompute = {.layers = model::RecomputePlan::Layers::kUniform, .num_layers = 1};
    all.push_back(again);
    const auto& delta = config_.delta_net;
    std::erase_if(all, [&](const LayoutCase& layout) {
      return config_.num_heads % layout.tp != 0 || (delta && delta->key_heads % (layout.tp * layout.cp) != 0);
    });
    return layouts_that_fit(golden_.folder, batch, all);
  }

  void expect_forward(const RunResult& run, const GoldenMediaBatch& batch) const {
    expect_close(run.token_losses.view_as(batch.token_losses), batch.token_losses, "token losses");
    expect_close(run.token_losses.sum().item<double>() / static_cast<double>(batch.num_label_tokens), batch.loss,
                 "loss");
    if (batch.logits.defined())
      expect_close(run.logits.narrow(0, 0, batch.logits.size(0)), batch.logits, "logits", tolerance_,
                   golden_.logits_noise);
  }

  // Runs the batch in every layout and compares losses, logits and the norm of all gradients, which `check` then gets.
  void in_every_layout(const GoldenMediaBatch& golden,
                       const std::function<void(const NamedTensors& gradients)>& check) const {
    const TokenBatch batch = batch_of(golden);
    for (const LayoutCase& layout : layouts(batch)) {
      SCOPED_TRACE(layout.name());
      const RunResult run = run_layout(golden_.folder, batch, layout);
      expect_forward(run, golden);
      double square = 0;
      for (const auto& [name, gradient] : run.gradients)
        square += gradient.to(at::kDouble).square().sum().item<double>();
      expect_close(std::sqrt(square), golden.grad_norm, "grad norm");
      check(run.gradients);
    }
  }

  GoldenMedia media_;
  GoldenModel golden_;
  model::ModelConfig config_;
  double tolerance_ = kClose;
};

TEST_P(GoldenHfSight, losses_and_gradients_in_every_layout) {
  in_every_layout(media_.main, [&](const NamedTensors& gradients) {
    for (const GoldenModel::Gradient& expected : golden_.gradients) {
      SCOPED_TRACE(expected.name);
      ASSERT_TRUE(gradients.contains(expected.name));
      const at::Tensor grad = gradients.at(expected.name).to(at::kDouble);
      ASSERT_EQ(grad.sizes(), at::IntArrayRef(expected.shape));
      // Keys with a bias: it adds the same to all scores of a query, and its gradient is nothing but rounding.
      const double unused = expected.name.ends_with("k_proj.bias") ? 1e-6 : 0;
      const double allowed = std::max({tolerance_ * expected.absmax, expected.noise, unused});
      expect_close(golden_sample(grad), expected.samples, "samples", 0, allowed);
      expect_close(grad.norm().item<double>(), expected.l2, "l2", tolerance_, allowed);
    }
    EXPECT_EQ(gradients.size(), golden_.gradients.size());
  });
}

// Images and videos in turns, and a row of text alone.
TEST_P(GoldenHfSight, images_videos_and_text_in_every_layout) {
  const nlohmann::json& norms = golden_member(golden_.json.at("mixed"), "grad_l2");
  in_every_layout(media_.mixed, [&](const NamedTensors& gradients) {
    for (const auto& [name, gradient] : gradients)
      expect_close(gradient.to(at::kDouble).norm().item<double>(), norms.at(name).get<double>(), name, 2 * tolerance_,
                   1e-6);
  });
}

// Without its tower the model reads and writes the same files: the tower's tensors are carried.
TEST_P(GoldenHfSight, text_alone_without_towers) {
  const at::Tensor ids = media_.mixed.input_ids[1].narrow(0, 0, 8).contiguous();
  const TokenBatch batch{ids, ids, ops::SequenceLayout::dense(1, 8), 1};
  const RunResult whole = run_layout(golden_.folder, batch, {});
  const RunResult text = run_layout(
      golden_.folder, batch, {}, [](model::ModelConfig& config) { config = model::without_towers(std::move(config)); });
  EXPECT_TRUE(at::equal(whole.logits, text.logits));
  EXPECT_LT(text.gradients.size(), whole.gradients.size());
}

INSTANTIATE_TEST_SUITE_P(, GoldenHfSight, ::testing::ValuesIn(golden_or_none(golden_sight_names())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

}  // namespace
}  // namespace megalith::testing

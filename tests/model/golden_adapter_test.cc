// The golden adapters in every layout: logits, merged logits, losses and gradients of Hugging Face's peft.
//
// Tolerance: 1e-5 of a tensor's largest value (of a gradient: of its length), or the golden file's own noise.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/golden_adapter.h"

namespace megalith::testing {
namespace {

class GoldenHfLora : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = read_golden_adapter(GetParam());
    const std::string type = golden_model_type(golden_.base);
    if (!model_type_supported(type)) GTEST_SKIP() << GetParam() << ": model type " << type << " is not supported";
    folder_ = golden_folder(golden_.base);
  }

  TokenBatch batch() const {
    return {golden_.input_ids.view({-1}), golden_.labels.view({-1}),
            ops::SequenceLayout::dense(golden_.input_ids.size(0), golden_.input_ids.size(1)),
            1.0 / static_cast<double>(golden_.label_tokens())};
  }

  std::vector<LayoutCase> layouts() const {
    const bool experts = model::read_model_config(folder_).moe.has_value();
    std::vector<LayoutCase> all{{.tp = 1}, {.tp = 1, .main_grad = true}, {.tp = 2, .sequence_parallel = true}};
    all.push_back({.tp = 4, .sequence_parallel = true, .main_grad = true});
    if (!experts) all.push_back({.tp = 2});
    if (experts)
      for (const auto& [tp, dp, ep, etp] : {std::array{1, 2, 2, 1}, {2, 1, 2, 1}, {2, 1, 1, 2}, {2, 2, 2, 2}})
        all.push_back({.tp = tp, .sequence_parallel = tp > 1, .dp = dp, .ep = ep, .etp = etp, .main_grad = dp > 1});
    all.push_back({.tp = 1, .cp = 2});
    all.push_back({.tp = 2, .sequence_parallel = true});
    all.back().options.recompute = {.layers = model::RecomputePlan::Layers::kUniform};
    all.push_back({.tp = 1});
    all.back().options.recompute = {.core_attention = true, .mlp = true, .norms = true};
    all.push_back({.tp = 2, .sequence_parallel = true});
    all.back().options.loss_chunk = 7;
    for (LayoutCase& layout : all) layout.adapter = golden_.folder;
    return layouts_that_fit(folder_, batch(), all);
  }

  // Where files share an A, the gradients of the copies are those of one.
  NamedTensors joined(NamedTensors gradients) const {
    for (const std::vector<std::string>& sharers : golden_.shared_a())
      for (auto& [name, gradient] : gradients) {
        const std::string end = "." + sharers[0] + ".lora_A.weight";
        if (!name.ends_with(end)) continue;
        for (size_t i = 1; i < sharers.size(); ++i) {
          const std::string other = name.substr(0, name.size() - end.size()) + "." + sharers[i] + ".lora_A.weight";
          gradient = gradient + gradients.at(other);
        }
      }
    return gradients;
  }

  void expect_gradients(const NamedTensors& separate) const {
    const NamedTensors gradients = joined(separate);
    double square = 0;
    for (const GoldenAdapter::Gradient& expected : golden_.gradients) {
      SCOPED_TRACE(expected.name);
      ASSERT_TRUE(gradients.contains(expected.name));
      const at::Tensor grad = gradients.at(expected.name).to(at::kDouble);
      const double allowed = std::max(kClose * expected.l2, 1e-7);
      expect_close(golden_sample(grad), expected.samples, "samples", 0, allowed);
      expect_close(grad.norm().item<double>(), expected.l2, "l2", kClose, allowed);
      expect_close(grad.sum().item<double>(), expected.sum, "sum", kClose,
                   allowed * std::sqrt(static_cast<double>(grad.numel())));
      square += grad.square().sum().item<double>();
    }
    expect_close(std::sqrt(square), golden_member(golden_.json, "grad_norm").get<double>(), "grad norm");
    if (golden_.shared_a().empty()) {
      EXPECT_EQ(gradients.size(), golden_.gradients.size());
    }
  }

  GoldenAdapter golden_;
  std::filesystem::path folder_;
};

TEST_P(GoldenHfLora, in_every_layout) {
  for (const LayoutCase& layout : layouts()) {
    SCOPED_TRACE(layout.name());
    const RunResult run = run_layout(folder_, batch(), layout);
    expect_close(run.logits.narrow(0, 0, golden_.logits.size(0)), golden_.logits, "logits", kClose,
                 golden_.logits_noise);
    expect_close(run.token_losses.view_as(golden_.token_losses), golden_.token_losses, "token losses");
    expect_close(run.token_losses.sum().item<double>() / static_cast<double>(golden_.label_tokens()),
                 golden_member(golden_.json, "loss").get<double>(), "loss");
    expect_gradients(run.gradients);
  }
}

TEST_P(GoldenHfLora, merged) {
  if (!golden_.merged_logits.defined()) skip_without_golden("merged_logits of " + golden_.name);
  for (LayoutCase layout : layouts()) {
    if (layout.cp > 1 || layout.main_grad) continue;
    layout.merged = true;
    SCOPED_TRACE(layout.name());
    const RunResult run = run_layout(folder_, batch(), layout);
    expect_close(run.logits.narrow(0, 0, golden_.logits.size(0)), golden_.merged_logits, "logits", kClose,
                 golden_.logits_noise);
    // And the weights are back where they were.
    expect_close(run.token_losses.view_as(golden_.token_losses), golden_.token_losses, "token losses");
  }
}

// Below the adapter lies the base, modules to save included.
TEST_P(GoldenHfLora, switched_off) {
  for (const char* key : {"loss", "base_loss"}) golden_member(golden_.json, key);
  for (const LayoutCase& layout :
       layouts_that_fit(folder_, batch(), {{.tp = 1}, {.tp = 2, .sequence_parallel = true}})) {
    const int tp = layout.tp;
    run_ranks(tp, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = tp, .tp = tp}));
      model::ModelSettings settings;
      settings.options.sequence_parallel = tp > 1;
      const auto models =
          model::with_adapter(folder_, settings, context, {.trained = golden_.folder, .keep_base = true});
      const at::NoGradGuard no_grad;
      const TokenBatch data = batch();
      const model::ModelInput input{.layout = data.layout,
                                    .ids = data.ids,
                                    .targets = model::shift_labels(data.labels, data.layout),
                                    .training = false};
      const auto loss = [&] { return models[0].forward(input).sum().item<double>() * data.loss_scale; };
      const auto expected = [&](const char* key) { return golden_.json.at(key).get<double>(); };
      expect_close(loss(), expected("loss"), "with the adapter");
      {
        const model::WithoutAdapter off(models);
        expect_close(loss(), expected("base_loss"), "without");
      }
      expect_close(loss(), expected("loss"), "with it again");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenHfLora, ::testing::ValuesIn(golden_or_none(golden_adapter_names())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

}  // namespace
}  // namespace megalith::testing

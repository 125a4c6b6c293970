// The decisions, weights and balancing losses of the golden models' routers, against Hugging Face's library.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/hf/safetensors_file.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"

namespace megalith::testing {
namespace {

std::vector<std::string> models_with_experts() {
  std::vector<std::string> names;
  for (const std::string& name : supported_golden_models()) try {
      if (model::read_model_config(golden_folder(name)).moe) names.push_back(name);
    } catch (const std::exception&) {
      names.push_back(name);  // its tests say what is wrong with it
    }
  return golden_or_none(names);
}

class GoldenHfRouter : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenHfRouter, decisions_in_every_layer) {
  const GoldenModel golden = read_golden_model(GetParam());
  const hf::SafetensorsFile file(golden.folder / "golden.safetensors");
  if (std::ranges::none_of(file.tensors(), [](const auto& t) { return t.name.starts_with("router."); }))
    skip_without_golden("router.*.experts of " + golden.name);
  const int64_t b = golden.input_ids.size(0), s = golden.input_ids.size(1);
  const at::Tensor real = golden.attention_mask.view({-1}).nonzero().view({-1});  // padding sees no padding there
  run_model(golden.folder, {}, [&](const Rank&, model::VirtualModels& models) {
    const at::NoGradGuard no_grad;
    for (const auto& place : models[0].routers()) place.router->start_recording();
    models[0].forward(
        {.layout = ops::SequenceLayout::dense(b, s), .ids = golden.input_ids.view({-1}), .training = false});
    for (const auto& place : models[0].routers()) {
      const auto decided = place.router->take_recorded();
      ASSERT_EQ(decided.size(), 1U);
      const std::string name = fmt::format("router.{}.experts", place.layer);
      if (!file.find(name)) continue;  // the test has been skipped if there is none at all
      const at::Tensor expected = file.tensor(name).to(at::kLong);
      EXPECT_TRUE(decided[0].index_select(0, real).equal(expected.index_select(0, real))) << "layer " << place.layer;
    }
  });
}

// The library's loss sums the choices' shares to k, Megatron's to 1.
TEST_P(GoldenHfRouter, losses_of_every_layer) {
  const GoldenModel golden = read_golden_model(GetParam());
  if (!has_golden(golden.json, "aux")) return;  // the library has none
  const auto& expected = golden_member(golden.json.at("aux"), "aux_loss_per_layer");
  const at::Tensor real = golden.attention_mask.view({-1}).nonzero().view({-1});
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < golden.attention_mask.size(0); ++row)
    lengths.push_back(golden.attention_mask[row].sum().item<int64_t>());
  ModelCase how;
  how.change = [](model::ModelConfig& config) { config.moe->router.losses = {{nn::BalanceLoss::Kind::kBatch, 0.01}}; };
  run_model(golden.folder, how, [&](const Rank&, model::VirtualModels& models) {
    models[0].forward(
        {.layout = ops::SequenceLayout::packed(lengths), .ids = golden.input_ids.view({-1}).index_select(0, real)});
    const auto k = static_cast<double>(models.config().moe->router.topk);
    for (const auto& place : models[0].routers()) {
      const auto& losses = place.router->statistics().losses;
      ASSERT_EQ(losses.size(), 1U);
      expect_close(losses[0].sum.item<double>(), expected.at(static_cast<size_t>(place.layer)).get<double>() / k,
                   fmt::format("loss of layer {}", place.layer));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, GoldenHfRouter, ::testing::ValuesIn(models_with_experts()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

}  // namespace
}  // namespace megalith::testing

// A residual stream in fp32 beside layers in bf16 (ModelOptions::fp32_residual): nearer to fp32 than without, and the
// same in every layout.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/model/families/family.h"
#include "tests/pipeline/pipeline_case.h"
#include "tests/support/close.h"
#include "tests/support/reference_model.h"

namespace megalith::testing {
namespace {

using Layers = model::RecomputePlan::Layers;

// Experts are all chosen, since a choice that flips in bf16 would hide everything else.
ReferenceConfig deep_config(const std::string& family, int64_t layers) {
  ReferenceConfig config = ReferenceConfig::of_family(family);
  config.num_layers = layers;
  if (config.experts) config.experts->topk = config.experts->count, config.experts->groups = config.experts->group_topk;
  return config;
}

PipelineCase bf16_case(bool wide) {
  PipelineCase how;
  how.options.dtype = at::kBFloat16;
  how.options.fp32_residual = wide;
  return how;
}

// Returns the distance of all gradients from those of `exact`, relative to their size.
double distance(const SmallModel::Step& step, const SmallModel::Step& exact) {
  double apart = 0, size = 0;
  for (const auto& [name, gradient] : exact.gradients) {
    apart += (step.gradients.at(name).to(at::kDouble) - gradient.to(at::kDouble)).square().sum().item<double>();
    size += gradient.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(apart / size);
}

void expect_identical_steps(const SmallModel::Step& actual, const SmallModel::Step& expected, const std::string& what) {
  EXPECT_EQ(actual.loss, expected.loss) << what;
  for (const auto& [name, gradient] : expected.gradients)
    expect_identical(actual.gradients.at(name), gradient, what + ": gradient of " + name);
}

const std::vector<Lengths> kData = equal_microbatches(4, 2, 8);

class WideStream : public ::testing::TestWithParam<std::string> {};

TEST_P(WideStream, ChangesNothingInFp32) {
  const SmallModel model(deep_config(GetParam(), 4));
  PipelineCase how;
  how.options.fp32_residual = true;
  expect_identical_steps(model.run(kData, how), model.run(kData, {}), GetParam());
}

// Stages send fp32 to each other: a message that rounds shows. (Both copies of a tied embedding add up in any order.)
void expect_same_stages(const SmallModel& model, const PipelineCase& how, const SmallModel::Step& alone) {
  const SmallModel::Step step = model.run(kData, how);
  EXPECT_EQ(step.loss, alone.loss) << how.name();
  EXPECT_LT(distance(step, alone), 1e-7) << how.name();
}

TEST_P(WideStream, IsTheSameInStages) {
  const SmallModel model(deep_config(GetParam(), 4));
  const SmallModel::Step alone = model.run(kData, bf16_case(true));
  for (const int pp : {2, 4})
    for (const bool overlap : {false, true}) {
      PipelineCase how = bf16_case(true);
      how.pp = pp;
      how.engine.overlap = overlap;
      expect_same_stages(model, how, alone);
    }
  PipelineCase virtual_stages = bf16_case(true);
  virtual_stages.pp = 2;
  virtual_stages.kind = layout::ScheduleKind::kInterleaved;
  virtual_stages.pipeline.vpp = 2;
  expect_same_stages(model, virtual_stages, alone);
}

TEST_P(WideStream, IsTheSameRecomputed) {
  const SmallModel model(deep_config(GetParam(), 4));
  const SmallModel::Step kept = model.run(kData, bf16_case(true));
  const std::vector<model::RecomputePlan> plans{{.layers = Layers::kUniform, .num_layers = 1},
                                                {.layers = Layers::kBlock, .num_layers = 2},
                                                {.core_attention = true},
                                                {.mlp = true},
                                                {.norms = true},
                                                {.core_attention = true, .mlp = true, .norms = true}};
  for (size_t i = 0; i < plans.size(); ++i) {
    PipelineCase how = bf16_case(true);
    how.options.recompute = plans[i];
    expect_identical_steps(model.run(kData, how), kept, fmt::format("{}, plan {}", GetParam(), i));
  }
}

// Partial sums of tensor-parallel ranks are rounded, so that results differ by less than bf16 from fp32.
TEST_P(WideStream, IsNearlyTheSameOverRanks) {
  const SmallModel model(deep_config(GetParam(), 4));
  const SmallModel::Step exact = model.run(kData, {}), alone = model.run(kData, bf16_case(true));
  const double rounding = distance(alone, exact);
  const bool experts = model.config().experts.has_value();  // trained with sequence parallelism only
  for (const auto& [tp, sequence_parallel, dp] : {std::tuple(2, false, 1), {2, true, 1}, {1, false, 2}, {2, true, 2}}) {
    if (experts && tp > 1 && !sequence_parallel) continue;
    PipelineCase how = bf16_case(true);
    how.tp = tp, how.dp = dp, how.sequence_parallel = sequence_parallel;
    const SmallModel::Step step = model.run(kData, how);
    EXPECT_LT(distance(step, exact), 1.5 * rounding) << how.name();
    EXPECT_NEAR(step.loss, alone.loss, 1e-3 * alone.loss) << how.name();
    if (tp == 1) {
      EXPECT_LT(distance(step, alone), 1e-5) << how.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WideStream, ::testing::ValuesIn(ReferenceConfig::families()),
                         [](const auto& test) { return test.param; });

// Makes weights that bf16 can hold, so that only activations are rounded.
void round_weights(const SmallModel& model) {
  const ReferenceModel weights = ReferenceModel::from_folder(model.folder());
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : weights.parameters()) parameter.copy_(parameter.to(at::kBFloat16));
  weights.save(model.folder());
}

class DeepWideStream : public ::testing::TestWithParam<const char*> {};

TEST_P(DeepWideStream, IsNearerToFp32) {
  const SmallModel model(deep_config(GetParam(), 24));
  round_weights(model);
  const SmallModel::Step exact = model.run(kData, {});
  const double narrow = distance(model.run(kData, bf16_case(false)), exact),
               wide = distance(model.run(kData, bf16_case(true)), exact);
  fmt::print("{}: gradients in bf16 are {:.4f} from those in fp32, with the stream in fp32 {:.4f}\n", GetParam(),
             narrow, wide);
  EXPECT_LT(wide, 0.8 * narrow);
}

INSTANTIATE_TEST_SUITE_P(Families, DeepWideStream,
                         ::testing::Values("gpt2", "llama", "qwen3", "qwen3_moe", "deepseek_v3", "glm4_moe"),
                         [](const auto& test) { return std::string(test.param); });

TEST(WideStreamPasses, EvaluationSeesTheSameStream) {
  const SmallModel model(deep_config("llama", 4));
  for (const int pp : {1, 2}) {
    PipelineCase how = bf16_case(true);
    how.pp = pp;
    run_ranks(pp, [&](const Rank& rank) {
      PipelineRank stage(rank, model.folder(), how);
      const double trained = stage.step(kData);
      EXPECT_EQ(stage.evaluate(kData), trained);
    });
  }
}

TEST(WideStreamPasses, ReachesMultiTokenPrediction) {
  ReferenceConfig config = deep_config("deepseek_v3", 16);
  config.mtp = 2;
  const SmallModel model(config);
  const SmallModel::Step exact = model.run(kData, {});
  const auto mtp_distance = [&](bool wide) {
    SmallModel::Step step = model.run(kData, bf16_case(wide)), of_mtp = exact;
    std::erase_if(of_mtp.gradients, [](const auto& each) {
      return !each.first.starts_with("model.layers.16.") && !each.first.starts_with("model.layers.17.");
    });
    EXPECT_FALSE(of_mtp.gradients.empty());
    return distance(step, of_mtp);
  };
  EXPECT_LT(mtp_distance(true), 0.9 * mtp_distance(false));
}

}  // namespace
}  // namespace megalith::testing

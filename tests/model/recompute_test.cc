// Recompute and dropout in whole models: bit-identical gradients, repeatable masks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/model/model_support.h"
#include "tests/support/close.h"

namespace megalith::testing {
namespace {

using model::RecomputePlan;
using Layers = RecomputePlan::Layers;

void with_dropout(model::ModelConfig& config) {
  config.attention_dropout = config.hidden_dropout = config.embedding_dropout = 0.1;
}

// Loss and gradients of one step, from the random state that `before` says.
struct Step {
  at::Tensor losses;
  std::vector<at::Tensor> gradients;
};

Step run_step(model::VirtualModels& models, const GoldenModel& golden) {
  const auto layout = ops::SequenceLayout::dense(golden.input_ids.size(0), golden.input_ids.size(1));
  const model::ModelInput input{.layout = layout,
                                .ids = golden.input_ids.view({-1}),
                                .targets = model::shift_labels(golden.labels.view({-1}), layout)};
  for (nn::Parameter* p : models.parameters()) p->value.mutable_grad().reset();
  const at::Tensor losses = models[0].forward(input);
  losses.sum().backward();
  Step step{losses.detach().clone(), {}};
  for (nn::Parameter* p : models.parameters()) step.gradients.push_back(p->value.grad().clone());
  return step;
}

void expect_identical_steps(const Step& a, const Step& b) {
  expect_identical(a.losses, b.losses, "losses");
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i)
    expect_identical(a.gradients[i], b.gradients[i], fmt::format("gradient {}", i));
}

TEST(ModelRecompute, BitIdenticalWithDropoutInEveryMode) {
  const std::vector<RecomputePlan> plans{{.layers = Layers::kUniform, .num_layers = 1},
                                         {.layers = Layers::kUniform, .num_layers = 3},
                                         {.layers = Layers::kUniform, .num_layers = 2, .split_over_tp = true},
                                         {.layers = Layers::kBlock, .num_layers = 2},
                                         {.core_attention = true},
                                         {.mlp = true},
                                         {.norms = true},
                                         {.core_attention = true, .mlp = true, .norms = true}};
  for (const char* family : {"gpt2", "qwen3"}) {
    const GoldenModel golden = read_golden_model(family);
    for (const auto& [tp, sp] : {std::pair(1, false), std::pair(2, false), std::pair(2, true)}) {
      std::vector<Step> kept(static_cast<size_t>(tp));
      ModelCase how{.tp = tp, .change = with_dropout};
      how.options.sequence_parallel = sp;
      run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
        kept[static_cast<size_t>(r.rank)] = run_step(models, golden);
      });
      for (size_t i = 0; i < plans.size(); ++i) {
        SCOPED_TRACE(fmt::format("{} tp {} sp {} plan {}", family, tp, sp, i));
        how.options.recompute = plans[i];
        run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
          expect_identical_steps(run_step(models, golden), kept[static_cast<size_t>(r.rank)]);
        });
      }
    }
  }
}

// Dropout is added to a stream in fp32; its mask is that of 16-bit numbers.
TEST(ModelRecompute, BitIdenticalWithDropoutBesideAWideStream) {
  const GoldenModel golden = read_golden_model("gpt2");
  ModelCase how{.tp = 2, .change = with_dropout};
  how.options.dtype = at::kBFloat16;
  how.options.fp32_residual = how.options.sequence_parallel = true;
  std::vector<Step> kept(2);
  run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
    kept[static_cast<size_t>(r.rank)] = run_step(models, golden);
  });
  for (const RecomputePlan& plan : {RecomputePlan{.layers = Layers::kUniform, .num_layers = 2},
                                    RecomputePlan{.core_attention = true, .mlp = true, .norms = true}}) {
    how.options.recompute = plan;
    run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
      expect_identical_steps(run_step(models, golden), kept[static_cast<size_t>(r.rank)]);
    });
  }
}

TEST(ModelDropout, SameAgainFromASavedState) {
  const GoldenModel golden = read_golden_model("llama");
  run_model(golden.folder, {.tp = 2, .change = with_dropout}, [&](const Rank&, model::VirtualModels& models) {
    run_step(models, golden);
    const std::string state = models.context().rng().save();
    const Step first = run_step(models, golden), other = run_step(models, golden);
    EXPECT_FALSE(first.losses.equal(other.losses));
    models.context().rng().restore(state);
    expect_identical_steps(run_step(models, golden), first);
  });
}

// The replicated parts of all tensor-parallel ranks drop the same elements: otherwise the ranks would hold different
// hidden states, and their losses would differ.
TEST(ModelDropout, RanksAgreeOnReplicatedValues) {
  const GoldenModel golden = read_golden_model("gpt2");
  for (const bool sp : {false, true}) {
    ModelCase how{.tp = 4, .change = with_dropout};
    how.options.sequence_parallel = sp;
    std::vector<at::Tensor> losses(4);
    run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
      losses[static_cast<size_t>(r.rank)] = run_step(models, golden).losses;
    });
    for (size_t r = 1; r < 4; ++r) expect_identical(losses[r], losses[0], "losses");
  }
}

}  // namespace
}  // namespace megalith::testing

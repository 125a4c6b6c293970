// Activations in host memory: the same bits as without, each storage copied once, and the device memory really freed.
#include "megalith/nn/activation_offload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"

namespace megalith::testing {
namespace {

using nn::ActivationOffload;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

at::Tensor numbers(int64_t n) { return at::arange(n, at::kFloat).add_(1); }

// Two "layers": y = (2 a w)², z = 3 y a. The first saves the square's input twice, once as a view.
TEST(ActivationOffload, FreesWhatOnlyAutogradHolds) {
  const ActivationOffload offload(at::kCPU, 100);
  const at::Tensor a = numbers(1000).requires_grad_(), w = numbers(1000).requires_grad_();
  ActivationOffload::Pass pass = offload.begin();
  WeakStorage inside{c10::intrusive_ptr<c10::StorageImpl>()};
  at::Tensor y;
  {
    const ActivationOffload::LayerScope scope(pass);
    const at::Tensor product = 2 * a * w;
    inside = product.storage().getWeakStorageImpl();
    y = product * product.view({10, 100}).view({1000});
  }
  pass.end_layer(0, y);
  // 2 a and product: 4000 bytes each. a and w are held by the test.
  EXPECT_EQ(offload.bytes(), 8000);
  EXPECT_FALSE(inside.expired());  // its copy is in flight
  at::Tensor z = 3 * y * a;
  pass.end_layer(1, z);
  EXPECT_TRUE(inside.expired());
  z.sum().backward();
  // z = 12 a³ w²
  expect_close(a.grad(), (36 * a * a * w * w).detach(), "da", 1e-5);
  expect_close(w.grad(), (24 * a * a * a * w).detach(), "dw", 1e-5);
}

// A span for what each layer sends and fetches; the first layer's copies come back before its backward.
TEST(ActivationOffload, ShowsItsCopies) {
  const ActivationOffload offload(at::kCPU, 100);
  TraceRecorder trace;
  trace.start_timeline();
  offload.set_trace(&trace);
  const at::Tensor a = numbers(1000).requires_grad_();
  ActivationOffload::Pass pass = offload.begin();
  at::Tensor y = a;
  for (int64_t layer = 0; layer < 2; ++layer) {
    {
      const ActivationOffload::LayerScope scope(pass);
      y = (2 * y).square();
    }
    pass.end_layer(layer, y);
  }
  y.sum().backward();
  std::vector<std::string> names;
  for (const TraceSpan& span : trace.take_spans()) {
    EXPECT_EQ(span.label.lane, TraceLane::kCopies);
    names.emplace_back(span.label.name);
  }
  const std::string out = "activations-to-host", back = "activations-to-device";
  EXPECT_EQ(names, (std::vector{out, out, back, back}));
  offload.set_trace(nullptr);
}

TEST(ActivationOffload, SmallStoragesStay) {
  const ActivationOffload offload(at::kCPU, 4001);
  const at::Tensor a = numbers(1000).requires_grad_();
  ActivationOffload::Pass pass = offload.begin();
  at::Tensor y;
  {
    const ActivationOffload::LayerScope scope(pass);
    y = (a * a).square();
  }
  pass.end_layer(0, y);
  EXPECT_EQ(offload.bytes(), 0);
  y.sum().backward();
  expect_close(a.grad(), (4 * a * a * a).detach(), "da", 1e-6);
}

// A graph that is dropped without backward frees everything, and so does one whose pass is gone.
TEST(ActivationOffload, GraphsOutliveTheirPass) {
  const at::Tensor a = numbers(1000).requires_grad_();
  at::Tensor y;
  {
    const ActivationOffload offload(at::kCPU, 100);
    ActivationOffload::Pass pass = offload.begin();
    for (int round = 0; round < 2; ++round) {
      const ActivationOffload::LayerScope scope(pass);
      y = (2 * a).square();
    }
    pass.end_layer(0, y);
  }
  y.sum().backward();
  expect_close(a.grad(), (8 * a).detach(), "da", 1e-6);
}

// Loss and gradients of one step.
std::vector<at::Tensor> step_of(model::VirtualModels& models, const GoldenModel& golden) {
  const auto layout = ops::SequenceLayout::dense(golden.input_ids.size(0), golden.input_ids.size(1));
  const model::ModelInput input{.layout = layout,
                                .ids = golden.input_ids.view({-1}),
                                .targets = model::shift_labels(golden.labels.view({-1}), layout)};
  const at::Tensor losses = models[0].forward(input);
  losses.sum().backward();
  std::vector<at::Tensor> step{losses.detach().clone()};
  for (nn::Parameter* p : models.parameters())
    step.push_back(p->value.grad().defined() ? p->value.grad().clone() : at::Tensor());
  return step;
}

TEST(ModelOffload, BitIdenticalInEveryFamilyAndLayout) {
  for (const char* family : {"gpt2", "qwen3", "qwen3_moe", "deepseek_v3", "qwen3_next"}) {
    const GoldenModel golden = read_golden_model(family);
    for (const auto& [tp, sp] : {std::pair(1, false), std::pair(2, false), std::pair(2, true)}) {
      if (const auto sizes = tp_sizes(golden.folder); std::ranges::find(sizes, tp) == sizes.end()) continue;
      if (tp > 1 && !sp && model::read_model_config(golden.folder).moe) continue;  // experts need sequence_parallel
      SCOPED_TRACE(fmt::format("{} tp {} sp {}", family, tp, sp));
      std::vector<std::vector<at::Tensor>> kept(static_cast<size_t>(tp));
      ModelCase how{.tp = tp, .change = [](model::ModelConfig& config) { config.hidden_dropout = 0.1; }};
      how.options.sequence_parallel = sp;
      run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
        kept[static_cast<size_t>(r.rank)] = step_of(models, golden);
        EXPECT_EQ(models[0].offloaded_bytes(), 0);
      });
      how.options.offload = {.num_layers = 1, .min_bytes = 64};
      run_model(golden.folder, how, [&](const Rank& r, model::VirtualModels& models) {
        const auto step = step_of(models, golden);
        EXPECT_GT(models[0].offloaded_bytes(), 0);
        const auto& expected = kept[static_cast<size_t>(r.rank)];
        ASSERT_EQ(step.size(), expected.size());
        for (size_t i = 0; i < step.size(); ++i)
          if (expected[i].defined()) expect_identical(step[i], expected[i], fmt::format("tensor {}", i));
      });
    }
  }
}

TEST(ModelOffload, RefusesRecomputationAndTooManyLayers) {
  const GoldenModel golden = read_golden_model("qwen3");
  const model::ModelConfig config = model::read_model_config(golden.folder);
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const auto make = [&](const model::ModelOptions& options) {
      model::VirtualModels(config, options, {model::ChunkPlace::whole(config)}, context);
    };
    model::ModelOptions options;
    options.offload.num_layers = config.num_layers;
    EXPECT_THROW(make(options), ConfigError);
    options.offload.num_layers = 1;
    options.recompute.norms = true;
    EXPECT_THROW(make(options), ConfigError);
  });
}

}  // namespace
}  // namespace megalith::testing

// Parts of layers and heads that a program brings: in every layout as on one rank, exported and read back, with
// adapters, planned where they state their footprint; what they do not say is refused in words.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/inference/generate.h"
#include "megalith/io/file_io.h"
#include "megalith/model/adapter.h"
#include "megalith/model/block_parts.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/model/head.h"
#include "megalith/model/model_options.h"
#include "megalith/model/part_kind.h"
#include "megalith/nn/block_part.h"
#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/footprint/rank_sizes.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/norm.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// fc_out(tanh(fc_in(x))).
class TanhMlp : public nn::BlockPart {
 public:
  TanhMlp(const nn::ParameterScope& scope, const nn::MlpShape& shape, const nn::TensorParallel& tp)
      : in_(scope, "fc_in", shape.hidden, {{"fc_in", shape.width}}, false, shape.init, tp),
        out_(scope, "fc_out", shape.width, shape.hidden, false, shape.out_init, tp) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const nn::LayerInput& /*input*/) const override {
    return out_.forward(at::tanh(in_.forward(x)), residual);
  }

 private:
  nn::ColumnParallelLinear in_;
  nn::RowParallelLinear out_;
};

// A part about which nothing but itself is known.
struct SilentKind : model::PartKind {
  explicit SilentKind(const nn::MlpShape& given) : shape(given) {}
  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const model::PartSite& site) const override {
    return std::make_unique<TanhMlp>(scope, shape, site.tp);
  }
  nn::MlpShape shape;
};

struct TanhKind : SilentKind {
  using SilentKind::SilentKind;
  model::PartFacts facts() const override {
    return {.random = false,
            .cached = true,
            .whole_sequences = "",
            .host_work = "",
            .multiplications = static_cast<double>(2 * shape.hidden * shape.width)};
  }
  bool repeated(const model::RecomputePlan& plan) const override { return plan.mlp; }
  std::vector<std::string> tensor_parallel_problems(int tp) const override {
    if (shape.width % tp == 0) return {};
    return {fmt::format("tensor_model_parallel_size {} does not divide the width {} of the tanh", tp, shape.width)};
  }
  std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& scope,
                                               const model::ModelOptions& /*options*/) const override {
    return nn::make_footprint(scope, shape);
  }
};

// A llama with `Kind` in place of the MLP in odd layers.
template <typename Kind>
std::shared_ptr<const model::Family> tanh_family() {
  auto family = std::make_shared<model::Family>(model::family("llama"));
  family->model_type = "tanh";
  family->read = [](const io::JsonFields& fields) {
    model::ModelConfig config = model::family("llama").read(fields);
    config.extras = nn::MlpShape{.hidden = config.hidden_size,
                                 .width = 48,
                                 .gated = false,
                                 .init = nn::Init::normal(0.1),
                                 .out_init = nn::Init::normal(0.1)};
    return config;
  };
  family->feed_forward = [](const model::ModelConfig& config, int64_t layer) -> std::unique_ptr<model::PartKind> {
    if (layer % 2 == 0) return nullptr;
    return std::make_unique<Kind>(std::any_cast<const nn::MlpShape&>(config.extras));
  };
  for (const std::string name : {"mlp.fc_in.weight", "mlp.fc_out.weight"})
    family->names.rules.push_back({"model.layers.{}." + name, {"layers.{}." + name}});
  return family;
}

// The golden llama's configuration as one of `family`, in `folder`.
model::ModelConfig write_config(const fs::path& folder, const std::shared_ptr<const model::Family>& family) {
  std::string text = io::read_text_file(golden_folder("llama") / "config.json", 1 << 20);
  const std::string type = "\"llama\"";
  text.replace(text.find(type), type.size(), '"' + family->model_type + '"');
  io::write_text_file(folder / "config.json", text);
  return model::read_model_config(folder, family);
}

// Exports a model of fresh weights; returns its folder.
fs::path export_fresh(const TempFolder& temp, const model::ModelConfig& config) {
  const fs::path folder = temp / "exported";
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid(layout::GridShape{}));
    const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
    models.initialize_parameters(3);
    model::save_pretrained(models, folder, {});
  });
  return folder;
}

TokenBatch some_tokens(const model::ModelConfig& config) {
  const at::Tensor ids = at::arange(32, at::kLong).mul(37).add(5).remainder(config.vocab_size);
  return {ids, ids.roll(3), ops::SequenceLayout::dense(2, 16), 0.05};
}

TEST(OwnParts, GiveTheSameInEveryLayoutAfterAnExport) {
  const TempFolder temp;
  const auto family = tanh_family<TanhKind>();
  const model::ModelConfig config = write_config(temp.path(), family);
  const fs::path folder = export_fresh(temp, config);
  const TokenBatch batch = some_tokens(config);
  const RunResult alone = run_layout(folder, batch, {.own_family = family});
  EXPECT_TRUE(alone.weights.contains("model.layers.0.mlp.up_proj.weight"));
  EXPECT_TRUE(alone.weights.contains("model.layers.1.mlp.fc_in.weight"));
  EXPECT_FALSE(alone.weights.contains("model.layers.1.mlp.up_proj.weight"));
  EXPECT_GT(alone.gradients.at("model.layers.1.mlp.fc_in.weight").abs().max().item<double>(), 0);

  std::vector<LayoutCase> layouts{{.tp = 2, .main_grad = true},
                                  {.tp = 2, .sequence_parallel = true, .main_grad = true},
                                  {.cp = 2},
                                  {.tp = 2, .cp = 2, .sequence_parallel = true},
                                  {.dp = 2},
                                  {.tp = 1},
                                  {.tp = 1}};
  layouts[5].options.recompute.mlp = true;
  layouts[6].options.recompute.layers = model::RecomputePlan::Layers::kUniform;
  for (LayoutCase& layout : layouts) {
    SCOPED_TRACE(layout.name());
    layout.own_family = family;
    const RunResult run = run_layout(folder, batch, layout);
    expect_close(run.token_losses, alone.token_losses, "losses");
    for (const auto& [name, gradient] : alone.gradients) expect_close(run.gradients.at(name), gradient, name);
    for (const auto& [name, weight] : alone.weights) expect_identical(run.weights.at(name), weight, name);
  }
}

// The parts' own linear layers are among the targets, and get their updates.
TEST(OwnParts, GetAdapters) {
  const TempFolder temp;
  const model::ModelConfig config = write_config(temp.path(), tanh_family<TanhKind>());
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid(layout::GridShape{}));
    model::ModelOptions options;
    options.adapter = model::resolve_targets({.rank = 2, .target_modules = {"all-linear"}}, config);
    const model::VirtualModels models(config, options, {model::ChunkPlace::whole(config)}, context);
    std::vector<std::string> updated;
    for (const nn::Parameter* p : models.parameters())
      if (p->attached.update && p->spec.name.starts_with("layers.1.mlp.")) updated.push_back(p->spec.name);
    EXPECT_EQ(updated, (std::vector<std::string>{"layers.1.mlp.fc_in.weight", "layers.1.mlp.fc_out.weight"}));
  });
}

TEST(OwnParts, ArePlannedByWhatTheyState) {
  const TempFolder temp;
  const model::ModelConfig config = write_config(temp.path(), tanh_family<TanhKind>());
  const model::ModelOptions options;
  const nn::RankSizes rank{.t = 32, .s = 32, .h = static_cast<double>(config.hidden_size), .length = 16};
  const model::ModelFootprint planned(config, options, rank);
  layout::SplitRequest whole;
  whole.num_layers = static_cast<int>(config.num_layers);
  std::vector<int64_t> sizes, real;
  for (const nn::ParameterSize& size : planned.parameters(layout::LayerSplit(whole).stage(0, 0)))
    sizes.push_back(size.numel);
  for (const hf::GlobalTensor& tensor : model::global_tensors(config))
    if (tensor.name.find(".mlp.fc_") != std::string::npos) real.push_back(tensor.shape[0] * tensor.shape[1]);
  for (const int64_t size : real) EXPECT_EQ(std::ranges::count(sizes, size), static_cast<int64_t>(real.size()));
  expect_contains(fmt::format("{}", fmt::join(model::tensor_parallel_problems(config, 5), "; ")),
                  "does not divide the width 48 of the tanh");
  EXPECT_EQ(model::capture_problem(config), "");
}

TEST(OwnParts, WhatTheyDoNotSayIsRefused) {
  const TempFolder temp;
  const model::ModelConfig config = write_config(temp.path(), tanh_family<SilentKind>());
  const nn::RankSizes rank{.t = 32, .s = 32, .h = static_cast<double>(config.hidden_size), .length = 16};
  expect_error<ConfigError>([&] { model::ModelFootprint(config, {}, rank); },
                            {"tanh models cannot be planned", "feed-forward of layer 1", "footprint()"});
  expect_contains(model::capture_problem(config), "does not say");
  run_ranks(2, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .cp = 2}));
    const auto make = [&] { model::VirtualModels(config, {}, {model::ChunkPlace::whole(config)}, context); };
    expect_error<ConfigError>(make, {"context_parallel_size 2 splits sequences", "does not say"});
  });
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid(layout::GridShape{}));
    const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
    models.initialize_parameters(1);
    expect_error<ConfigError>(
        [&] {
          inference::generate(models, {1, 2}, {.max_new_tokens = 1}, {});
        },
        {"tanh models cannot generate", "PartFacts::cached"});
  });
}

// One number per token; the loss is its squared distance from the target.
class ValueHead : public model::Head {
 public:
  ValueHead(const nn::ParameterScope& scope, const model::HeadSite& site)
      : tp_(site.tp),
        norm_(scope.child("norm"), {.size = site.config.hidden_size}, tp_.splits_tokens(), tp_.rank()),
        value_(scope, "value", site.config.hidden_size, {{"value", 1}}, false, nn::Init::normal(0.1), tp_) {}
  at::Tensor forward(const at::Tensor& x, const model::ModelInput& input, const nn::LayerInput&) const override {
    at::Tensor values = value_.forward(norm_.forward(x));
    if (tp_.splits_tokens()) values = nn::gather_tokens(values, tp_.group, nn::GatheredGrad::kSame);
    if (!input.targets.defined()) return values;
    return (values.squeeze(1).to(at::kFloat) - input.targets.to(at::kFloat)).square();
  }

 private:
  const nn::TensorParallel tp_;
  nn::Norm norm_;
  nn::ReplicatedLinear value_;
};

std::shared_ptr<const model::Family> value_family() {
  auto family = std::make_shared<model::Family>(model::family("llama"));
  family->model_type = "value";
  family->head = [](const nn::ParameterScope& scope, const model::HeadSite& site) {
    return std::make_unique<ValueHead>(scope, site);
  };
  family->names.rules.push_back({"value_norm.weight", {"head.norm.weight"}});
  family->names.rules.push_back({"value.weight", {"head.value.weight"}});
  return family;
}

TEST(OwnHead, GivesTheSameInEveryLayoutAfterAnExport) {
  const TempFolder temp;
  const model::ModelConfig config = write_config(temp.path(), value_family());
  const fs::path folder = export_fresh(temp, config);
  const TokenBatch batch = some_tokens(config);
  const at::Tensor targets = batch.ids.remainder(3);
  at::Tensor expected;
  NamedTensors first;
  for (const auto& [tp, sp] : {std::pair(1, false), std::pair(2, false), std::pair(2, true)}) {
    NamedTensors gradients = whole_tensors(config);
    EXPECT_TRUE(gradients.contains("value.weight") && !gradients.contains("lm_head.weight"));
    at::Tensor losses;
    run_ranks(tp, [&, tp = tp, sp = sp](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = tp, .tp = tp}));
      model::ModelOptions options;
      options.sequence_parallel = sp;
      const model::VirtualModels models(config, options, {model::ChunkPlace::whole(config)}, context);
      model::load_weights(models, folder, model::read_model_config(folder, config.own_family), 1);
      const at::Tensor result = models[0].forward({.layout = batch.layout, .ids = batch.ids, .targets = targets});
      result.sum().backward();
      fill_in(gradients, models, [&](const nn::Parameter& p) {
        const at::Tensor gradient = p.value.grad().clone();
        if (p.spec.partial_grad_over_tp) context.tp().all_reduce(gradient);
        return gradient;
      });
      if (r.rank == 0) losses = result.detach();
    });
    if (!expected.defined()) {
      expected = losses;
      first = gradients;
      EXPECT_GT(first.at("value.weight").abs().max().item<double>(), 0);
    }
    expect_close(losses, expected, "losses");
    for (const auto& [name, gradient] : first) expect_close(gradients.at(name), gradient, name);
  }
}

TEST(OwnHead, WhatNeedsTheVocabularyIsRefused) {
  const TempFolder temp;
  model::ModelConfig config = write_config(temp.path(), value_family());
  const nn::RankSizes rank{.t = 32, .s = 32, .h = static_cast<double>(config.hidden_size), .length = 16};
  expect_error<ConfigError>([&] { model::ModelFootprint(config, {}, rank); },
                            {"value models cannot be planned", "head"});
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid(layout::GridShape{}));
    const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
    expect_error<ConfigError>(
        [&] {
          inference::generate(models, {1, 2}, {.max_new_tokens = 1}, {});
        },
        {"head of value models does not predict tokens"});
    model::ModelConfig tied = config;
    tied.tied_embeddings = true;
    expect_error<ConfigError>([&] { model::VirtualModels(tied, {}, {model::ChunkPlace::whole(tied)}, context); },
                              {"the head of value models is the family's own", "tied embeddings"});
  });
}

}  // namespace
}  // namespace megalith::testing

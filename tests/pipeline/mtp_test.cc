// Latent attention and multi-token prediction in whole models, in every layout, against plain ATen.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "tests/pipeline/latent_reference.h"
#include "tests/pipeline/pipeline_case.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using layout::ScheduleKind;
using Layers = model::RecomputePlan::Layers;

constexpr double kMtpLossWeight = 0.1;  // the weight of the prediction layers' mean loss

// A checkpoint and its step: mean over the tokens of the main loss, plus the prediction layers'.
class MtpModel {
 public:
  explicit MtpModel(const LatentConfig& config) : config_(config), reference_(config, 3) {
    reference_.save(folder_.path());
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

  SmallModel::Step expected(const std::vector<Lengths>& microbatches) const {
    at::Tensor main = at::zeros({}, at::kDouble), all = main;
    int64_t tokens = 0;
    for (size_t i = 0; i < microbatches.size(); ++i) {
      int64_t first = 0;
      for (const int64_t length : microbatches[i]) {
        const auto losses = reference_.losses(ids_of(microbatches, i, 48).narrow(0, first, length));
        main = main + losses.main;
        all = all + losses.main;
        for (const at::Tensor& each : losses.mtp)
          all = all + each * (kMtpLossWeight / static_cast<double>(config_.mtp));
        tokens += length - 1;
        first += length;
      }
    }
    for (const auto& [name, parameter] : reference_.parameters()) parameter.mutable_grad() = at::Tensor();
    (all / tokens).backward();
    SmallModel::Step step{main.item<double>() / static_cast<double>(tokens), {}};
    for (const auto& [name, parameter] : reference_.parameters()) step.gradients[name] = parameter.grad();
    return step;
  }

  SmallModel::Step run(const std::vector<Lengths>& microbatches, const PipelineCase& how) const {
    SmallModel::Step result{0, whole_tensors(model::read_model_config(folder()))};
    run_ranks(how.ranks(), [&](const Rank& rank) {
      PipelineRank stage(rank, folder(), how);
      const double loss = stage.step(microbatches);
      fill_in(result.gradients, stage.models(), [](const nn::Parameter& p) { return p.grad.main_grad; });
      if (rank.rank == 0) result.loss = loss;
    });
    return result;
  }

 private:
  LatentConfig config_;
  LatentReference reference_;
  TempFolder folder_;
};

std::vector<PipelineCase> layouts() {
  std::vector<PipelineCase> all;
  const auto add = [&](int tp, bool sp, int pp, int dp, const std::function<void(PipelineCase&)>& change = {}) {
    PipelineCase how{.tp = tp, .pp = pp, .dp = dp, .sequence_parallel = sp};
    how.kind = pp > 1 ? ScheduleKind::kOneFOneB : ScheduleKind::kNone;
    if (change) change(how);
    all.push_back(how);
  };
  const auto interleaved = [](PipelineCase& how) {
    how.kind = ScheduleKind::kInterleaved;
    how.pipeline.vpp = 2;
  };
  add(1, false, 1, 1);
  add(2, false, 1, 1);
  add(2, true, 1, 1);
  add(4, true, 1, 1);
  add(1, false, 2, 1);
  add(1, false, 4, 1);
  add(1, false, 2, 1, interleaved);
  add(2, true, 2, 1, interleaved);
  add(2, false, 2, 1);
  add(1, false, 2, 2);
  add(1, false, 2, 1, [](PipelineCase& how) { how.kind = ScheduleKind::kZeroBubble; });
  add(1, false, 2, 1, [](PipelineCase& how) { how.pipeline.layout = "Etttt|mmL"; });
  add(2, true, 2, 1, [](PipelineCase& how) { how.options.recompute = {.layers = Layers::kUniform, .num_layers = 2}; });
  add(2, true, 1, 1, [](PipelineCase& how) {
    how.options.recompute = {.core_attention = true, .mlp = true, .norms = true, .mla_up_proj = true};
  });
  add(2, true, 1, 1, [](PipelineCase& how) {
    how.options.recompute = {.mla_up_proj = true};
    how.options.loss_chunk = 5;
  });
  return all;
}

void expect_parity(const LatentConfig& config) {
  const MtpModel model(config);
  for (const auto& data : {equal_microbatches(4, 2, 6), unequal_microbatches(4, 3)}) {
    const SmallModel::Step expected = model.expected(data);
    for (const PipelineCase& how : layouts()) {
      if (how.pipeline.layout && config.mtp != 2) continue;
      expect_same_step(model.run(data, how), expected, how.name());
    }
  }
}

TEST(MultiTokenPrediction, TwoDepths) { expect_parity({.mtp = 2}); }
TEST(MultiTokenPrediction, TiedEmbeddings) { expect_parity({.mtp = 1, .tied = true}); }
TEST(MultiTokenPrediction, WithoutQueryCompression) { expect_parity({.mtp = 1, .q_rank = 0}); }
TEST(LatentModel, WithoutPredictionLayers) { expect_parity({.mtp = 0}); }

TEST(MultiTokenPrediction, ExportsWhatItRead) {
  const MtpModel model({.mtp = 2});
  for (const int pp : {1, 2}) {
    const TempFolder out;
    run_ranks(2, [&](const Rank& rank) {
      PipelineRank stage(rank, model.folder(), {.tp = 2 / pp, .pp = pp});
      model::save_pretrained(stage.models(), out / "model", {});
    });
    const hf::WeightFiles before(model.folder()), after(out / "model");
    ASSERT_EQ(before.names(), after.names());
    for (const std::string& name : before.names()) expect_identical(after.tensor(name), before.tensor(name), name);
    EXPECT_EQ(model::read_pretrained_config(out / "model").mtp_layers, 2);
  }
}

// transformers writes config.json with the layers' number and leaves their weights out.
TEST(MultiTokenPrediction, LayersThatFilesLackAreNotThereUnlessAskedFor) {
  const LatentReference reference({.mtp = 1}, 3);
  const TempFolder folder;
  reference.save(folder.path(), /*with_mtp=*/false);
  EXPECT_EQ(model::read_model_config(folder.path()).mtp_layers, 1);
  EXPECT_EQ(model::read_pretrained_config(folder.path()).mtp_layers, 0);
  at::Tensor fresh[2];
  for (const int tp : {1, 2})
    run_ranks(tp, [&](const Rank& rank) {
      parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = tp, .tp = tp}));
      model::ModelSettings settings;
      const auto plain = model::AutoModel::from_pretrained(folder.path().string(), settings, context);
      EXPECT_EQ(plain[0].parameters().find("mtp.0.projection.weight"), nullptr);
      settings.overrides.mtp_layers = 1;
      const auto models = model::AutoModel::from_pretrained(folder.path().string(), settings, context);
      if (rank.rank == 0)
        fresh[tp - 1] = models[0].parameters().find("mtp.0.projection.weight")->value.detach().clone();
    });
  expect_identical(fresh[0], fresh[1], "fresh weights");
  EXPECT_GT(fresh[0].abs().max().item<double>(), 0);
}

TEST(MultiTokenPrediction, RefusesWhatCannotBe) {
  const MtpModel model({.mtp = 1});
  const model::ModelConfig config = model::read_model_config(model.folder());
  run_ranks(2, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 2, .pp = 2}));
    const layout::SplitRequest stages{.layout = layout::PipelineLayout::parse("Ett|ttL")};
    expect_error<ConfigError>([&] { model::chunk_places(stages, config, context); }, {"mtp_num_layers is 1"});
  });
  run_ranks(4, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 4, .pp = 4}));
    const layout::SplitRequest stages{.layout = layout::PipelineLayout::parse("Ett|tt|m|L")};
    expect_error<ConfigError>([&] { model::chunk_places(stages, config, context); },
                              {"Ett|tt|m|L", "must all stand on the stage with the loss"});
  });
}

TEST(MultiTokenPrediction, NeedsTheTokensAheadOfEachLayer) {
  const MtpModel model({.mtp = 2});
  run_ranks(1, [&](const Rank& rank) {
    PipelineRank stage(rank, model.folder(), {});
    const ops::SequenceLayout layout = ops::SequenceLayout::dense(1, 6);
    const at::Tensor ids = at::arange(6, at::kLong);
    std::vector<at::Tensor> losses;
    model::ModelInput input{.layout = layout, .ids = ids, .hidden = {}, .targets = model::shift_labels(ids, layout)};
    input.mtp_losses = &losses;
    input.ahead = model::tokens_ahead(ids, input.targets, layout, 1);
    expect_error<InternalError>([&] { stage.models()[0].forward(input); },
                                {"2 multi-token-prediction layers got the tokens ahead for 1"});
  });
}

}  // namespace
}  // namespace megalith::testing

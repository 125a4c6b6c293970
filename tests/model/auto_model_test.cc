// From a folder and what a run decides about it to a model.
#include "megalith/model/auto_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "megalith/layout/layer_split.h"
#include "megalith/model/model_settings.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

TEST(ModelOverrides, WinOverTheFilesWhereTheyAreGiven) {
  const auto in_files = model::read_model_config(golden_folder("gpt2"));
  model::ModelOverrides overrides;
  overrides.hidden_dropout = 0.2;
  overrides.attention_dropout = 0.3;
  const auto changed = overrides.applied_to(in_files);
  EXPECT_EQ(changed.hidden_dropout, 0.2);
  EXPECT_EQ(changed.embedding_dropout, 0.2);
  EXPECT_EQ(changed.attention_dropout, 0.3);
  EXPECT_EQ(changed.init_std, in_files.init_std);
  EXPECT_EQ(model::ModelOverrides{}.applied_to(in_files).hidden_dropout, in_files.hidden_dropout);
}

TEST(ModelOverrides, PredictionLayersNeedAFamilyThatHasThem) {
  model::ModelOverrides overrides;
  overrides.mtp_layers = 1;
  expect_error<ConfigError>([&] { overrides.applied_to(model::read_model_config(golden_folder("llama"))); },
                            {"mtp_num_layers is 1", "llama models have no multi-token-prediction layers"});
}

TEST(ModelOverrides, OfRouters) {
  using Kind = nn::BalanceLoss::Kind;
  auto in_files = model::read_model_config(golden_folder("mixtral"));
  in_files.moe->router.losses = {{Kind::kBatch, 0.02}};
  const auto router = [&](const model::RouterOverrides& changes) {
    const model::ModelConfig once = model::ModelOverrides{.router = changes}.applied_to(in_files);
    EXPECT_EQ(once.moe->router, model::ModelOverrides{.router = changes}.applied_to(once).moe->router);
    return once.moe->router;
  };
  EXPECT_EQ(router({}), in_files.moe->router);
  using Losses = std::vector<nn::BalanceLoss>;
  EXPECT_EQ(router({.losses = {{{Kind::kSequence, 0.5}}}}).losses, (Losses{{Kind::kSequence, 0.5}}));
  EXPECT_EQ(router({.losses = {{{Kind::kGlobal, std::nullopt}}}}).losses, (Losses{{Kind::kGlobal, 0.02}}));
  EXPECT_EQ(router({.losses = {{{Kind::kBatch, 0.0}}}}).losses, Losses{});
  EXPECT_EQ(router({.losses = std::vector<model::RouterOverrides::Loss>{}}).losses, Losses{});
  const nn::RouterShape limited = router({.z_coeff = 0.1, .capacity_factor = 1.5, .replay = true});
  EXPECT_EQ(limited.z_coeff, 0.1);
  EXPECT_EQ(limited.capacity_factor, 1.5);
  EXPECT_TRUE(limited.replay);
  EXPECT_EQ(limited.losses, in_files.moe->router.losses);
}

TEST(AutoModel, LoadsAPathAndAHubNameAlike) {
  const TempFolder temp;
  const auto snapshot = temp / "hub/models--org--tiny/snapshots/abc";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(temp / "hub/models--org--tiny/refs");
  std::ofstream(temp / "hub/models--org--tiny/refs/main") << "abc";
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(golden_folder("qwen2") / file, snapshot / file);
  const hf::HubEnvironment env{.home = temp.path(), .hf_hub_cache = temp / "hub", .modelscope_cache = {}};
  run_ranks(2, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
    const auto by_path = model::AutoModel::from_pretrained(golden_folder("qwen2").string(), {}, context, {}, env);
    const auto by_name = model::AutoModel::from_pretrained("org/tiny", {}, context, {}, env);
    const auto a = by_path.parameters(), b = by_name.parameters();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) expect_identical(a[i]->value, b[i]->value, a[i]->spec.name);
    try {
      model::AutoModel::from_pretrained("org/other", {}, context, {}, env);
      ADD_FAILURE() << "a model that is not there was loaded";
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "hf download org/other");
    }
  });
}

// Chunks of pipeline stages hold the layers that the split says, and together they are the whole model.
TEST(VirtualModels, StagesAndVirtualStagesAreTheWholeModel) {
  const auto config = model::read_model_config(golden_folder("qwen2"));  // tied embeddings, 4 layers
  for (const auto& [pp, vpp] : {std::pair(2, 1), std::pair(4, 1), std::pair(2, 2)}) {
    NamedTensors whole = whole_tensors(config);
    run_ranks(pp, [&, pp = pp, vpp = vpp](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = pp, .pp = pp}));
      layout::SplitRequest stages;
      if (vpp > 1) stages.vpp = vpp;
      const auto places = model::chunk_places(stages, config, context);
      EXPECT_EQ(static_cast<int>(places.size()), vpp);
      const model::VirtualModels models(config, {}, places, context);
      model::load_weights(models, golden_folder("qwen2"), config, 1);
      EXPECT_EQ(models[0].place().embedding, r.rank == 0);
      EXPECT_EQ(models[models.size() - 1].place().head, r.rank == pp - 1);
      if (r.rank == pp - 1) {
        const nn::Parameter* head = models[models.size() - 1].parameters().find("embedding.weight");
        ASSERT_NE(head, nullptr);
        EXPECT_EQ(head->spec.role, nn::ParameterRole::kTiedCopy);
      }
      fill_in(whole, models, [](const nn::Parameter& p) { return p.value.detach(); });
    });
    const hf::WeightFiles files(golden_folder("qwen2"));
    for (const auto& [name, tensor] : whole) expect_identical(tensor, files.tensor(name), name);
  }
}

// Each stage continues with the output of the one before: the same losses as the whole model.
TEST(VirtualModels, ChunksInARowAreTheModel) {
  const GoldenModel golden = read_golden_model("llama");
  const auto config = model::read_model_config(golden.folder);
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  const model::VirtualModels chunks(config, {}, {{0, 1, true, false}, {1, 3, false, false}, {4, 0, false, true}},
                                    context);
  model::load_weights(chunks, golden.folder, config, 1);
  const auto layout = ops::SequenceLayout::dense(golden.input_ids.size(0), golden.input_ids.size(1));
  model::ModelInput input{.layout = layout,
                          .ids = golden.input_ids.view({-1}),
                          .targets = model::shift_labels(golden.labels.view({-1}), layout)};
  for (const auto& chunk : chunks) input.hidden = chunk->forward(input);
  expect_close(input.hidden.view_as(golden.token_losses), golden.token_losses, "token losses");
}

TEST(VirtualModels, ImpossibleSizesAreRefusedByName) {
  const auto config = model::read_model_config(golden_folder("llama"));  // 8 heads, 4 kv heads
  run_ranks(3, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 3, .tp = 3}));
    try {
      const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
      ADD_FAILURE() << "8 heads were split by 3";
    } catch (const ConfigError& error) {
      expect_contains(error.what(), "8 attention heads cannot be split over tensor_model_parallel_size 3");
    }
  });
}

}  // namespace
}  // namespace megalith::testing

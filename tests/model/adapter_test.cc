// Adapters on everything that can have one, in every family: against the merged model, whose own gradients give those
// of A and B (dA = s Bᵀ dW, dB = s dW Aᵀ); and their files.
#include "megalith/model/adapter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/families/family.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/peft/names.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden_adapter.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

peft::AdapterConfig adapter_on(std::vector<std::string> targets) {
  peft::AdapterConfig adapter;
  adapter.target_modules = std::move(targets);
  return adapter;
}

// Returns the gradients of an adapter that follow from those of the merged model.
NamedTensors expected_gradients(const RunResult& merged, const model::ModelConfig& config, const fs::path& adapter) {
  const hf::SafetensorsFile file(adapter / "adapter_model.safetensors");
  const double s = peft::read_adapter_config(adapter).scale();
  NamedTensors expected;
  const hf::TensorMapping mapping(model::name_map(config), model::global_tensors(config));
  for (const hf::FileTensor& tensor : mapping.files()) {
    const peft::UpdateNames names = peft::update_names(tensor.name);
    const bool lookup = file.find(names.lookup_a) != nullptr;
    const std::string a = lookup ? names.lookup_a : names.a, b = lookup ? names.lookup_b : names.b;
    if (!file.find(a)) continue;
    at::Tensor dw = merged.gradients.at(tensor.name);
    if (tensor.transposed || lookup) dw = dw.t();
    expected[a] = file.tensor(b).t().mm(dw) * s;
    expected[b] = dw.mm(file.tensor(a).t()) * s;
  }
  return expected;
}

std::vector<LayoutCase> layouts_of(const model::ModelConfig& config) {
  std::vector<LayoutCase> all{{.tp = 1}, {.tp = 1, .main_grad = true}};
  const bool splits = !config.delta_net || config.delta_net->key_heads % 2 == 0;
  if (splits && !config.moe) all.push_back({.tp = 2, .main_grad = true});
  if (splits) all.push_back({.tp = 2, .sequence_parallel = true, .main_grad = true});
  if (splits && config.moe)
    all.push_back({.tp = 2, .sequence_parallel = true, .dp = 2, .ep = 2, .etp = 2, .main_grad = true});
  if (config.moe) all.push_back({.tp = 1, .dp = 2, .ep = 2, .etp = 1});
  all.push_back({.tp = 1});
  all.back().options.recompute = {.layers = model::RecomputePlan::Layers::kUniform};
  return all;
}

class AdapterOf : public ::testing::TestWithParam<std::string> {};

// Numbers of this size round at 1e-5 of the largest in a deep sum; a wrong term is far larger.
constexpr double kTolerance = 2e-4;

// Every layout equals the first one, which gives its result.
RunResult expect_same_in_layouts(const fs::path& folder, const fs::path& adapter, const TokenBatch& batch) {
  std::optional<RunResult> first;
  for (LayoutCase layout : layouts_of(model::read_model_config(folder))) {
    layout.adapter = adapter;
    SCOPED_TRACE(layout.name());
    RunResult run = run_layout(folder, batch, layout);
    if (!first) {
      first = std::move(run);
    } else {
      expect_close(run.logits, first->logits, "logits", kTolerance);
      expect_close(run.token_losses, first->token_losses, "losses", kTolerance);
      for (const auto& [name, gradient] : first->gradients)
        expect_close(run.gradients.at(name), gradient, name, kTolerance, 1e-6);
    }
  }
  return *first;
}

TEST_P(AdapterOf, EveryLayerInEveryLayout) {
  const fs::path folder = golden_folder(GetParam());
  const model::ModelConfig config = model::read_model_config(folder);
  const TempFolder temp;
  const TokenBatch batch = small_batch(200);
  // A tied embedding with an update looks up the updated rows and predicts with the old ones: no merged model does.
  write_random_adapter(folder, temp / "adapter", everything(config, !config.tied_embeddings));
  model::convert_checkpoint(folder, temp / "merged", {.adapters = {temp / "adapter"}});
  const RunResult merged = run_layout(temp / "merged", batch, {});
  const RunResult run = expect_same_in_layouts(folder, temp / "adapter", batch);
  expect_close(run.logits, merged.logits, "logits of the merged model", kTolerance);
  const NamedTensors expected = expected_gradients(merged, config, temp / "adapter");
  ASSERT_EQ(run.gradients.size(), expected.size());
  for (const auto& [name, gradient] : expected) expect_close(run.gradients.at(name), gradient, name, kTolerance, 1e-6);
  if (!config.tied_embeddings) return;
  write_random_adapter(folder, temp / "tied", everything(config, true));
  expect_same_in_layouts(folder, temp / "tied", batch);
  EXPECT_THROW(model::convert_checkpoint(folder, temp / "no", {.adapters = {temp / "tied"}}), ConfigError);
}

// Adapters name experts one by one, whatever the form of the files; merging finds them in the stacks.
TEST(AdapterOnStackedExperts, MergedEqualsSeparateInEveryLayout) {
  for (const char* name : {"qwen3_vl_moe", "qwen3_5_moe"}) {
    SCOPED_TRACE(name);
    const fs::path folder = golden_folder(name);
    const model::ModelConfig config = model::read_model_config(folder);
    ASSERT_NE(config.form.experts, model::ExpertStorage::kEach);
    const TempFolder temp;
    const TokenBatch batch = small_batch(config.vocab_size);
    write_random_adapter(folder, temp / "adapter", everything(config, true));
    const hf::SafetensorsFile file(temp / "adapter" / "adapter_model.safetensors");
    EXPECT_TRUE(file.find("base_model.model.model.language_model.layers.0.mlp.experts.1.up_proj.lora_A.weight"));
    model::convert_checkpoint(folder, temp / "merged", {.adapters = {temp / "adapter"}});
    EXPECT_EQ(hf::WeightFiles(temp / "merged").names(), hf::WeightFiles(folder).names());
    const RunResult merged = run_layout(temp / "merged", batch, {});
    const RunResult run = expect_same_in_layouts(folder, temp / "adapter", batch);
    expect_close(run.logits, merged.logits, "logits of the merged model", kTolerance);
  }
}

// "base_model.model.model.language_model.layers.…" -> "base_model.model.model.layers.…", as before transformers 4.52.
std::string older_name(std::string name) {
  for (const auto& [newer, older] :
       {std::pair<std::string_view, std::string_view>{"model.language_model.", "model."}, {"model.visual.", "visual."}})
    if (const size_t found = name.rfind(newer); found != std::string::npos) name.replace(found, newer.size(), older);
  return name;
}

// Writes the adapter again with the older names.
void write_with_older_names(const fs::path& adapter, const fs::path& to) {
  const hf::SafetensorsFile file(adapter / "adapter_model.safetensors");
  std::vector<hf::WeightSpec> specs;
  for (const hf::TensorInfo& info : file.tensors()) specs.push_back({older_name(info.name), info.dtype, info.shape});
  fs::create_directory(to);
  hf::WeightWriter writer(to, specs, {.stem = peft::kWeightsStem});
  writer.create_files();
  for (const hf::TensorInfo& info : file.tensors()) writer.write(older_name(info.name), file.tensor(info.name));
  writer.sync();
  fs::copy_file(adapter / peft::kConfigName, to / peft::kConfigName);
}

// peft matches the names of modules, which the files of these models do not have.
TEST(AdapterOnModelsThatSee, HasTheNamesOfModulesOldOrNew) {
  for (const char* name : {"qwen2_vl", "qwen2_5_vl"}) {
    SCOPED_TRACE(name);
    const fs::path folder = golden_folder(name);
    const model::ModelConfig config = model::read_model_config(folder);
    const TempFolder temp;
    const TokenBatch batch = small_batch(config.vocab_size);
    write_random_adapter(folder, temp / "newer", everything(config, true));
    write_with_older_names(temp / "newer", temp / "older");
    const hf::SafetensorsFile newer(temp / "newer" / "adapter_model.safetensors"),
        older(temp / "older" / "adapter_model.safetensors");
    for (const char* module : {"model.language_model.embed_tokens", "model.language_model.layers.1.self_attn.q_proj",
                               "model.visual.blocks.0.attn.qkv", "model.visual.merger.mlp.2", "lm_head"}) {
      const peft::UpdateNames names = peft::update_names(std::string(module) + ".weight");
      EXPECT_TRUE(newer.find(names.b) || newer.find(names.lookup_b)) << module;
    }
    EXPECT_TRUE(older.find("base_model.model.visual.blocks.0.attn.qkv.lora_B.weight"));
    EXPECT_TRUE(older.find("base_model.model.model.embed_tokens.lora_embedding_B"));

    const RunResult run = expect_same_in_layouts(folder, temp / "newer", batch);
    const RunResult of_older = run_layout(folder, batch, {.adapter = temp / "older"});
    expect_identical(of_older.logits, run.logits, "logits of the adapter with older names");
    for (const char* written : {"newer", "older"}) {
      SCOPED_TRACE(written);
      const fs::path merged = temp / (std::string(written) + "-merged");
      model::convert_checkpoint(folder, merged, {.adapters = {temp / written}});
      const hf::WeightFiles after(merged), before(folder);
      EXPECT_EQ(after.names(), before.names());
      expect_close(run_layout(merged, batch, {}).logits, run.logits, "logits of the merged model", kTolerance);
      // Text does not reach the tower.
      const peft::UpdateNames names = peft::update_names("model.visual.blocks.0.attn.qkv.weight");
      const at::Tensor base = before.tensor("visual.blocks.0.attn.qkv.weight");
      const at::Tensor update = newer.tensor(names.b).mm(newer.tensor(names.a));
      EXPECT_GT(update.abs().max().item<double>(), 1e-2);
      expect_close(after.tensor("visual.blocks.0.attn.qkv.weight"),
                   base + update * peft::read_adapter_config(temp / "newer").scale(), "tower", 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Family, AdapterOf, ::testing::ValuesIn(supported_golden_models()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

// ---- Files ----

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AdapterFiles, WrittenAsReadInEveryLayout) {
  for (const std::string& name : golden_adapter_names()) {
    const GoldenAdapter golden = read_golden_adapter(name);
    for (const auto& [tp, dp, ep] : {std::array{1, 1, 1}, {2, 1, 1}, {2, 2, 2}}) {
      SCOPED_TRACE(fmt::format("{} tp {} dp {}", name, tp, dp));
      const TempFolder temp;
      run_ranks(tp * dp, [&, tp = tp, ep = ep](const Rank& r) {
        parallel::ParallelContext context(r.world,
                                          layout::RankGrid({.world_size = r.size, .tp = tp, .ep = ep, .etp = 1}));
        const auto models = model::with_adapter(golden_folder(golden.base), {}, context, {.trained = golden.folder});
        model::save_adapter(models, temp / "out");
      });
      const hf::SafetensorsFile before(golden.folder / "adapter_model.safetensors"),
          after(temp / "out" / "adapter_model.safetensors");
      ASSERT_EQ(before.tensors().size(), after.tensors().size());
      for (const auto& info : before.tensors())
        expect_identical(after.tensor(info.name), before.tensor(info.name), info.name);
      EXPECT_EQ(nlohmann::json::parse(text_of(temp / "out" / "adapter_config.json")),
                nlohmann::json::parse(text_of(golden.folder / "adapter_config.json")));
    }
  }
}

void with_models(const std::string& name, const model::AdapterSource& source,
                 const std::function<void(const model::VirtualModels&)>& body) {
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    body(model::with_adapter(golden_folder(name), {}, context, source));
  });
}

std::string refusal(const std::string& name, const model::AdapterSource& source) {
  std::string said = "nothing is wrong";
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    try {
      model::with_adapter(golden_folder(name), {}, context, source);
    } catch (const Error& error) {
      said = error.what();
    }
  });
  return said;
}

TEST(AdapterFiles, OfAnotherModelAreRefused) {
  const fs::path moe = read_golden_adapter("qwen3_moe_experts").folder, llama = read_golden_adapter("llama_r8").folder;
  const auto trained = [](const fs::path& folder) { return model::AdapterSource{.trained = folder}; };
  expect_contains(refusal("llama", trained(moe)), "experts.0.gate_proj.lora_A.weight");
  const std::string shapes = refusal("qwen3", trained(llama));
  expect_contains(shapes, "of another shape");
  expect_contains(shapes, "self_attn.q_proj.lora_B.weight: [64, 8] in the file");
  EXPECT_THROW(model::convert_checkpoint(golden_folder("qwen3"), TempFolder() / "x", {.adapters = {llama}}), DataError);
}

// In one pass, one after the other, and in a model: each sum is rounded to the dtype of the weights.
TEST(AdapterFiles, SeveralAreMergedInOrder) {
  const fs::path first = read_golden_adapter("llama_rslora").folder, second = read_golden_adapter("llama_r8").folder;
  const TempFolder temp;
  const fs::path base = temp / "base";
  model::convert_checkpoint(golden_folder("llama"), base, {.dtype = at::kBFloat16});
  model::convert_checkpoint(base, temp / "both", {.adapters = {first, second}});
  model::convert_checkpoint(base, temp / "one", {.adapters = {first}});
  model::convert_checkpoint(temp / "one", temp / "then", {.adapters = {second}});
  run_ranks(2, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
    model::ModelSettings settings;
    settings.options.dtype = at::kBFloat16;
    const auto models = model::with_adapter(base, settings, context, {.merged = {first}, .trained = second});
    const model::WithMergedAdapter merged(models);
    model::save_pretrained(models, temp / "live", {.dtype = at::kBFloat16});
  });
  const hf::WeightFiles before(base), both(temp / "both"), then(temp / "then"), live(temp / "live");
  int64_t changed = 0;
  for (const std::string& name : before.names()) {
    expect_identical(both.tensor(name), then.tensor(name), name);
    expect_close(both.tensor(name).to(at::kFloat), live.tensor(name).to(at::kFloat), name, 8e-3);  // a step of bf16
    changed += both.tensor(name).equal(before.tensor(name)) ? 0 : 1;
  }
  EXPECT_GT(changed, 20);
  // An adapter of another model is refused wherever it stands in the list.
  const fs::path other = read_golden_adapter("qwen3_r8").folder;
  EXPECT_THROW(model::convert_checkpoint(base, temp / "no", {.adapters = {first, other}}), DataError);
  EXPECT_FALSE(fs::exists(temp / "no"));
}

TEST(AdapterFiles, AllTargetsOfAFamily) {
  const auto targets = [](const std::string& model) {
    return model::resolve_targets(adapter_on({"all"}), model::read_model_config(golden_folder(model))).target_modules;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(targets("llama"), (Names{"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
  EXPECT_EQ(targets("gpt2"), (Names{"c_attn", "c_fc", "c_proj"}));
  EXPECT_EQ(targets("mixtral"), (Names{"k_proj", "o_proj", "q_proj", "v_proj", "w1", "w2", "w3"}));
}

TEST(AdapterFiles, UnknownTargetsNameTheNearest) {
  const auto said = [](std::vector<std::string> target, std::vector<std::string> saved = {}) {
    peft::AdapterConfig adapter = adapter_on(std::move(target));
    adapter.modules_to_save = std::move(saved);
    try {
      model::resolve_targets(adapter, model::read_model_config(golden_folder("qwen2")));  // tied
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing is wrong");
  };
  expect_contains(said({"q_prj"}), "no linear layer q_prj; did you mean q_proj");
  expect_contains(said({"input_layernorm"}), "no linear layer input_layernorm");
  expect_contains(said({"lm_head"}), "no linear layer lm_head");
  expect_contains(said({"q_proj"}, {"embed_tokens"}), "name both embed_tokens and lm_head");
  expect_contains(said({"q_proj"}, {"embed_token"}), "did you mean embed_tokens");
  expect_contains(said({"k_proj"}, {"q_proj"}), "one parameter with");
  EXPECT_EQ(said({"q_proj"}, {"embed_tokens", "lm_head", "norm"}), "nothing is wrong");
}

TEST(AdapterFiles, AFreshAdapterChangesNothing) {
  with_models("llama", {.fresh = adapter_on({"all"})}, [&](const model::VirtualModels& models) {
    const at::NoGradGuard no_grad;
    const TokenBatch batch = small_batch(200);
    const model::ModelInput input{.layout = batch.layout, .ids = batch.ids, .training = false};
    const at::Tensor with = models[0].forward(input);
    const model::WithoutAdapter off(models);
    expect_identical(with, models[0].forward(input), "logits");
  });
}

TEST(AdapterFiles, AreMergedBelowTheTrainedOne) {
  const fs::path r8 = read_golden_adapter("llama_r8").folder, rslora = read_golden_adapter("llama_rslora").folder;
  const auto logits = [&](const model::AdapterSource& source) {
    at::Tensor result;
    with_models("llama", source, [&](const model::VirtualModels& models) {
      const at::NoGradGuard no_grad;
      const TokenBatch batch = small_batch(200);
      result = models[0].forward({.layout = batch.layout, .ids = batch.ids, .training = false});
    });
    return result;
  };
  const at::Tensor both = logits({.merged = {r8}, .trained = rslora});
  expect_close(both, logits({.merged = {rslora}, .trained = r8}), "both are there", 1e-4);
  expect_close(both, logits({.merged = {r8, rslora}, .fresh = adapter_on({"all"})}), "merged", 1e-4);
  EXPECT_GT((both - logits({.trained = r8})).abs().max().item<double>(), 1e-2);
}

// ---- Magnitudes (use_dora) ----

peft::AdapterConfig dora_on(std::vector<std::string> targets) {
  peft::AdapterConfig adapter = adapter_on(std::move(targets));
  adapter.rank = 3;
  adapter.alpha = 5;
  adapter.use_dora = true;
  return adapter;
}

// The golden adapters cover llama, qwen2 and gpt2; here are replicated products, experts beside, a head and towers.
TEST(DoraAdapter, MergedEqualsSeparateInEveryLayout) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"deepseek_v3", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}},
      {"qwen3_moe", {"q_proj", "k_proj", "o_proj", "lm_head"}},
      {"qwen3_vl", {"q_proj", "o_proj", "down_proj", "qkv", "linear_fc1"}}};
  for (const auto& [name, targets] : cases) {
    SCOPED_TRACE(name);
    const fs::path folder = golden_folder(name);
    const TempFolder temp;
    const TokenBatch batch = small_batch(std::min<int64_t>(200, model::read_model_config(folder).vocab_size));
    std::vector<std::string> known = targets;
    if (model::read_model_config(folder).tied_embeddings) std::erase(known, "lm_head");
    write_random_adapter(folder, temp / "adapter", dora_on(known));
    model::convert_checkpoint(folder, temp / "merged", {.adapters = {temp / "adapter"}});
    const RunResult merged = run_layout(temp / "merged", batch, {});
    const RunResult run = expect_same_in_layouts(folder, temp / "adapter", batch);
    expect_close(run.logits, merged.logits, "logits of the merged model", kTolerance);
    LayoutCase split{.tp = 2, .sequence_parallel = true, .adapter = temp / "adapter", .merged = true};
    expect_close(run_layout(folder, batch, split).logits, merged.logits, "logits of weights merged in memory",
                 kTolerance);
  }
}

TEST(DoraAdapter, AFreshOneChangesNothing) {
  for (const int tp : {1, 2})
    run_ranks(tp, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = tp, .tp = tp}));
      const auto models = model::with_adapter(golden_folder("qwen2"), {}, context, {.fresh = dora_on({"all"})});
      const at::NoGradGuard no_grad;
      const TokenBatch batch = small_batch(200);
      const model::ModelInput input{.layout = batch.layout, .ids = batch.ids, .training = false};
      const at::Tensor with = models[0].forward(input);
      const model::WithoutAdapter off(models);
      expect_close(with, models[0].forward(input), "logits", 1e-4);  // biases are added apart
    });
}

// A second adapter has the norms of the weights into which the first one was merged.
TEST(DoraAdapter, StartsFromWhatIsMergedBelow) {
  const fs::path first = read_golden_adapter("llama_dora").folder;
  const auto logits = [&](const model::AdapterSource& source) {
    at::Tensor result;
    with_models("llama", source, [&](const model::VirtualModels& models) {
      const at::NoGradGuard no_grad;
      const TokenBatch batch = small_batch(200);
      result = models[0].forward({.layout = batch.layout, .ids = batch.ids, .training = false});
    });
    return result;
  };
  expect_close(logits({.merged = {first}, .fresh = dora_on({"all"})}), logits({.trained = first}), "logits", 1e-4);
}

TEST(DoraAdapter, IsRefusedWhereNothingHasMagnitudes) {
  expect_contains(refusal("qwen3_moe", {.fresh = dora_on({"all"})}), "is one of the experts");
  expect_contains(refusal("qwen3_moe", {.fresh = dora_on({"gate"})}), "is one of the routers and gates");
  expect_contains(refusal("llama", {.fresh = dora_on({"embed_tokens"})}), "is one of the embeddings");
}

// ---- Dropout ----

TEST(AdapterDropout, RecomputedLayersDrawTheSameMasks) {
  const auto loss_and_gradient = [](bool recompute, int64_t seed) {
    std::pair<double, double> found;
    run_ranks(1, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
      context.rng().seed(layout::seeds_for_base(seed, 0, 0, 0));
      model::ModelSettings settings;
      if (recompute) settings.options.recompute.layers = model::RecomputePlan::Layers::kUniform;
      model::AdapterSource source{.fresh = adapter_on({"all"})};
      source.fresh.dropout = 0.3;
      const auto models = model::with_adapter(golden_folder("llama"), settings, context, source);
      {
        const at::NoGradGuard no_grad;
        for (const nn::Parameter* p : models.parameters())
          if (p->spec.role == nn::ParameterRole::kAdapter)
            nn::fill_normal(p->value, 1, p->spec.name, p->value.sizes(), {0, 0}, 0, 0.1);
      }
      const TokenBatch batch = small_batch(200);
      const at::Tensor losses = models[0].forward(
          {.layout = batch.layout, .ids = batch.ids, .targets = model::shift_labels(batch.labels, batch.layout)});
      losses.sum().backward();
      found.first = losses.sum().item<double>();
      for (const nn::Parameter* p : models.parameters())
        if (p->value.grad().defined()) found.second += p->value.grad().square().sum().item<double>();
    });
    return found;
  };
  EXPECT_EQ(loss_and_gradient(false, 1), loss_and_gradient(true, 1));
  EXPECT_NE(loss_and_gradient(false, 1), loss_and_gradient(false, 2));
}

}  // namespace
}  // namespace megalith::testing

// Hugging Face folders in and out.
#include "megalith/model/pretrained.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

nlohmann::json read_json(const fs::path& path) { return nlohmann::json::parse(std::ifstream(path)); }

void expect_same_weights(const fs::path& actual, const fs::path& expected) {
  const hf::WeightFiles a(actual), b(expected);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) expect_identical(a.tensor(name), b.tensor(name), name);
}

// A folder with the config.json of `source` and the tensors that `change` returns for its own.
void write_folder(const fs::path& source, const fs::path& target,
                  const std::function<void(std::map<std::string, at::Tensor>&)>& change) {
  fs::create_directories(target);
  fs::copy_file(source / "config.json", target / "config.json");
  const hf::WeightFiles files(source);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : files.names()) tensors[name] = files.tensor(name);
  change(tensors);
  std::vector<hf::WeightSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  hf::WeightWriter writer(target, specs);
  writer.create_files();
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.sync();
}

std::string load_error(const fs::path& folder, std::function<void(model::ModelConfig&)> change = {}) {
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  const model::ModelConfig in_files = model::read_model_config(folder);
  model::ModelConfig config = in_files;
  if (change) change(config);
  const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
  try {
    model::load_weights(models, folder, in_files, 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class Pretrained : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path source() const { return golden_folder(GetParam()); }
  TempFolder temp_;
};

TEST_P(Pretrained, ExportOfAnImportIsBitIdentical) {
  for (const int tp : tp_sizes(source())) {
    SCOPED_TRACE(tp);
    const fs::path target = temp_ / fmt::format("tp{}", tp);
    // Shards so small that there are many, and tensors that lie in their own.
    run_model(source(), {.tp = tp}, [&](const Rank&, model::VirtualModels& models) {
      model::save_pretrained(models, target, {.max_shard_bytes = 40'000, .assets = source()});
    });
    expect_same_weights(target, source());
    EXPECT_EQ(read_json(target / "config.json"), read_json(source() / "config.json"));
    EXPECT_TRUE(fs::exists(target / "generation_config.json"));
    EXPECT_TRUE(fs::exists(target / "model.safetensors.index.json"));
  }
}

TEST_P(Pretrained, ReplicasWriteOnce) {
  const fs::path target = temp_ / "replicas";
  run_model(source(), {.tp = 2, .dp = 2},
            [&](const Rank&, model::VirtualModels& models) { model::save_pretrained(models, target, {}); });
  expect_same_weights(target, source());
}

// Every rectangle has one writer, and the replicas share them; ranks that have written all of theirs meet the others
// turn by turn, here after each rectangle.
TEST_P(Pretrained, ReplicasShareTheWork) {
  const fs::path target = temp_ / "shared";
  std::mutex mutex;
  std::map<std::string, int> writers;  // number of writers by rectangle
  std::vector<int> written(4, 0);      // by rank
  run_model(source(), {.dp = 4}, [&](const Rank& rank, model::VirtualModels& models) {
    const model::ExportedWeights weights = model::exported_weights(models, at::kFloat);
    {
      const std::lock_guard lock(mutex);
      for (const hf::HeldRectangle& held : weights.held) {
        const int one = held.replica == 0 ? 1 : 0;
        writers[fmt::format("{} at {}", held.tensor, fmt::join(held.offset, ","))] += one;
        written[static_cast<size_t>(rank.rank)] += one;
      }
    }
    io::StagedFolder staged(target, "export", {.owner = rank.rank == 0});
    model::write_weights(
        models.context(), staged, weights, {}, [] {}, std::chrono::milliseconds(0));
    model::commit_export(models.context(), staged);
  });
  for (const auto& [rectangle, count] : writers) EXPECT_EQ(count, 1) << rectangle;
  for (const int count : written) EXPECT_GT(count, 0);
  expect_same_weights(target, source());
}

TEST_P(Pretrained, Bf16ExportIsReadAgain) {
  const fs::path target = temp_ / "bf16";
  run_model(source(), {.tp = 2}, [&](const Rank&, model::VirtualModels& models) {
    model::save_pretrained(models, target, {.dtype = at::kBFloat16});
  });
  EXPECT_EQ(model::read_model_config(target).dtype, at::kBFloat16);
  const hf::WeightFiles a(target), b(source());
  for (const std::string& name : a.names()) expect_identical(a.tensor(name), b.tensor(name).to(at::kBFloat16), name);
}

// transformers opens what we write and gets the same numbers; only where Python has it.
// Arguments: the exported folder, the golden one.
constexpr const char* kLogitsAreGolden = R"(
import sys, torch, transformers
from safetensors.torch import load_file
m, info = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not info['missing_keys'] and not info['unexpected_keys'], info
g = load_file(sys.argv[2] + '/golden.safetensors')
with torch.no_grad(): out = m(g['input_ids']).logits[0]
err = (out - g['logits']).abs().max().item()
assert err < 1e-3, err
)";
// The golden batches of these have pictures; their text is read by the model as it was before.
constexpr const char* kTextEqualsTheOriginal = R"(
import sys, torch, transformers
def model(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    m, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys'], info
    return getattr(m, 'thinker', m)
ids = torch.arange(1, 25).unsqueeze(0)
with torch.no_grad(): logits = [model(folder)(ids).logits for folder in sys.argv[1:3]]
assert logits[0].isfinite().all() and torch.equal(*logits), (logits[0] - logits[1]).abs().max()
)";

TEST_P(Pretrained, OpensInTransformers) {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with transformers";
  const fs::path target = temp_ / "python";
  run_model(source(), {.tp = 2}, [&](const Rank&, model::VirtualModels& models) {
    model::save_pretrained(models, target, {.max_shard_bytes = 100'000});
  });
  const bool has_towers = std::ranges::count(supported_media_models(), GetParam()) > 0;
  const char* script = has_towers ? kTextEqualsTheOriginal : kLogitsAreGolden;
  const auto run =
      run_process({python, "-c", script, target.string(), source().string()}, {}, std::chrono::seconds(120));
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

INSTANTIATE_TEST_SUITE_P(, Pretrained, ::testing::ValuesIn(supported_golden_models()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);
INSTANTIATE_TEST_SUITE_P(Media, Pretrained, ::testing::ValuesIn(supported_media_models()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

TEST(PretrainedFiles, EveryTensorThatDoesNotFitIsNamed) {
  const TempFolder temp;
  write_folder(golden_folder("llama"), temp / "bad", [](auto& tensors) {
    tensors.erase("model.layers.1.mlp.up_proj.weight");
    tensors.erase("model.norm.weight");
    tensors["model.layers.0.self_attn.q_proj.weight"] = at::zeros({3, 5});
    tensors["model.layers.2.mlp.down_proj.weight"] = at::zeros({64, 128}, at::kLong);
    tensors["model.layers.9.mlp.up_proj.weight"] = at::zeros({1});
  });
  const std::string message = load_error(temp / "bad");
  for (const char* part : {"missing (2)", "model.layers.1.mlp.up_proj.weight", "model.norm.weight", "unexpected (1)",
                           "model.layers.9.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight: [3, 5]",
                           "[64, 64]", "model.layers.2.mlp.down_proj.weight: I64"})
    expect_contains(message, part);
}

TEST(PretrainedFiles, BuffersAndRepeatedHeadsAreIgnored) {
  const TempFolder temp;
  write_folder(golden_folder("qwen2"), temp / "tied", [](auto& tensors) {
    tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({8});
  });
  EXPECT_EQ(load_error(temp / "tied"), "");
}

TEST(PretrainedFiles, Gpt2FilesWithoutPrefixAreRead) {
  const TempFolder temp;
  write_folder(golden_folder("gpt2"), temp / "short", [](auto& tensors) {
    std::map<std::string, at::Tensor> shorter;
    for (const auto& [name, tensor] : tensors) shorter[name.substr(std::string("transformer.").size())] = tensor;
    shorter["h.0.attn.bias"] = at::ones({1, 1, 4, 4});
    tensors = shorter;
  });
  EXPECT_EQ(load_error(temp / "short"), "");
}

TEST(PretrainedFiles, VocabularyGrowsTheSameInEveryLayout) {
  const fs::path source = golden_folder("llama");
  const int64_t grown = 515;  // no multiple of anything
  std::vector<NamedTensors> results;
  for (const int tp : {1, 2, 4}) {
    const TempFolder temp;
    const ModelCase how{.tp = tp, .change = [&](model::ModelConfig& config) { config.vocab_size = grown; }};
    NamedTensors whole;
    run_model(source, how, [&](const Rank& r, model::VirtualModels& models) {
      if (r.rank == 0) whole = whole_tensors(models.config());
      r.world.world().barrier();
      fill_in(whole, models, [](const nn::Parameter& p) { return p.value.detach(); });
    });
    results.push_back(whole);
  }
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const at::Tensor old = hf::WeightFiles(source).tensor(name), now = results[0].at(name);
    expect_identical(now.narrow(0, 0, old.size(0)), old, name);
    const at::Tensor fresh = now.narrow(0, old.size(0), grown - old.size(0));
    EXPECT_FALSE(fresh[0].equal(fresh[1]));
    // mean of the old rows plus N(0, 1/8): hidden size 64
    EXPECT_LT((fresh.mean(0) - old.mean(0)).abs().max().item<double>(), 0.5);
    EXPECT_NEAR((fresh - old.mean(0)).std().item<double>(), 1.0 / 8, 0.03);
    for (size_t i = 1; i < results.size(); ++i) expect_close(results[i].at(name), now, name, 1e-6);
  }
}

TEST(PretrainedFiles, VocabularyDoesNotShrink) {
  expect_contains(load_error(golden_folder("llama"), [](model::ModelConfig& config) { config.vocab_size = 100; }),
                  "512 ids cannot shrink to 100");
}

TEST(PretrainedFiles, AnExistingFolderIsNotOverwritten) {
  const TempFolder temp;
  std::ofstream(temp / "precious") << "text";
  run_model(golden_folder("llama"), {}, [&](const Rank&, model::VirtualModels& models) {
    EXPECT_THROW(model::save_pretrained(models, temp.path(), {}), ConfigError);
  });
  EXPECT_TRUE(fs::exists(temp / "precious"));
}

// Fresh weights do not depend on the layout.
TEST(PretrainedFiles, FreshWeightsAreTheSameInEveryLayout) {
  const model::ModelConfig config = model::read_model_config(golden_folder("qwen3"));
  std::vector<NamedTensors> results;
  for (const int tp : {1, 2, 4}) {
    NamedTensors whole = whole_tensors(config);
    run_ranks(tp, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = tp, .tp = tp}));
      const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
      models.initialize_parameters(7);
      fill_in(whole, models, [](const nn::Parameter& p) { return p.value.detach(); });
    });
    results.push_back(whole);
  }
  for (const auto& [name, tensor] : results[0])
    for (size_t i = 1; i < results.size(); ++i) expect_identical(results[i].at(name), tensor, name);
  EXPECT_NEAR(results[0].at("model.layers.0.mlp.up_proj.weight").std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(results[0].at("model.layers.0.mlp.down_proj.weight").std().item<double>(), 0.02 / std::sqrt(8.0), 0.001);
}

}  // namespace
}  // namespace megalith::testing

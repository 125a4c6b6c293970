// Weights that do not fit or are not finite, in words.
#include "megalith/model/weight_check.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "megalith/hf/non_finite.h"
#include "tests/model/model_support.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

template <typename Call>
std::string data_error(const Call& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

// Two tensor-parallel ranks hold a half each, with replicas of both. Every rank says the same.
TEST(WeightCheck, ValuesThatAreNotFiniteCountOnce) {
  run_ranks(4, [](const Rank& r) {
    layout::GridShape shape;
    shape.world_size = 4;
    shape.tp = 2;
    parallel::ParallelContext context(r.world, layout::RankGrid(shape));
    const int64_t half = context.place().tp_rank;
    std::vector<hf::NonFiniteValues> found{{.tensor = "up.weight",
                                            .file = "model-00001.safetensors",
                                            .offset = {half * 8, 0},
                                            .count = 3 + half,
                                            .too_large_for = ""}};
    if (r.rank == 3) found.push_back({"norm.weight", "model-00002.safetensors", {0}, 1, "Half"});
    const std::string error = data_error([&] { model::require_finite(found, "folder", context); });
    expect_contains(error, "the weights in folder hold NaN or infinities: ");
    expect_contains(error, "up.weight in model-00001.safetensors (7 values)");
    expect_contains(error, "norm.weight in model-00002.safetensors (1 value too large for Half)");
    model::require_finite({}, "folder", context);
  });
}

TEST(WeightCheck, FilesOfAModelFitItsConfig) {
  for (const char* name : {"llama", "qwen3_moe", "gpt2", "deepseek_v3"})
    EXPECT_NO_THROW(model::check_weight_files(golden_folder(name))) << name;
}

TEST(WeightCheck, MissingFilesAndOtherShapesAreFound) {
  TempFolder folder;
  fs::copy_file(golden_folder("llama") / "model.safetensors", folder / "model.safetensors");
  fs::copy_file(golden_folder("qwen3") / "config.json", folder / "config.json");
  expect_contains(data_error([&] { model::check_weight_files(folder / ""); }),
                  "are not those of the model that config.json describes");
  fs::remove(folder / "model.safetensors");
  EXPECT_NE(data_error([&] { model::check_weight_files(folder / ""); }), "");
}

TEST(WeightCheck, OnlyTheSameModelContinues) {
  const model::ModelConfig llama = model::read_model_config(golden_folder("llama"));
  EXPECT_NO_THROW(model::check_same_model(golden_folder("llama"), llama));
  model::ModelConfig grown = llama;
  grown.vocab_size += 64;
  EXPECT_NO_THROW(model::check_same_model(golden_folder("llama"), grown));
  model::ModelConfig wider = llama;
  wider.mlp_width *= 2;
  const std::string width = data_error([&] { model::check_same_model(golden_folder("llama"), wider); });
  expect_contains(width, "intermediate_size is ");
  expect_contains(width, "tensors differ, such as: layers.0.mlp.");
  const std::string family = data_error([&] { model::check_same_model(golden_folder("qwen3_moe"), llama); });
  expect_contains(family, "is of another model: model_type is qwen3_moe there and llama here");
}

}  // namespace
}  // namespace megalith::testing

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/json_reader.h"
#include "tests/hf/file_support.h"
#include "tests/support/golden.h"

namespace megalith::hf {
namespace {

namespace fs = std::filesystem;

// The model folders among the golden data.
std::vector<fs::path> golden_models() {
  std::vector<fs::path> folders;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(testing::golden_dir() / "hf", missing))
    if (fs::exists(entry.path() / "config.json") && fs::exists(entry.path() / "model.safetensors"))
      folders.push_back(entry.path());
  std::ranges::sort(folders);
  if (folders.empty()) testing::skip_without_golden("hf/*/model.safetensors");
  return folders;
}

TEST(GoldenHf, hf_model_files_hold_the_tensors_that_golden_json_lists) {
  for (const fs::path& folder : golden_models()) {
    SCOPED_TRACE(folder.string());
    const WeightFiles files(folder);
    if (!fs::exists(folder / "golden.json")) continue;  // the reference of preferences has none
    const nlohmann::json golden = nlohmann::json::parse(file_bytes(folder / "golden.json"));
    if (!testing::has_golden(golden, "params")) continue;
    for (const auto& [name, entry] : golden.at("params").items()) {
      const TensorInfo* info = files.find(name);
      ASSERT_NE(info, nullptr) << name;
      EXPECT_EQ(info->shape, entry.at("shape").get<std::vector<int64_t>>()) << name;
    }
    const SafetensorsFile file(folder / "golden.safetensors");
    if (file.find("logits")) {
      EXPECT_TRUE(file.tensor("logits").isfinite().all().item<bool>());
    }
  }
}

// The reference library wrote these files: for its order of tensors ours are the same, byte by byte.
TEST(GoldenHf, hf_model_files_come_back_byte_by_byte) {
  for (const fs::path& folder : golden_models()) {
    SCOPED_TRACE(folder.string());
    const SafetensorsFile file(folder / "model.safetensors");
    std::vector<WeightSpec> specs;
    for (const TensorInfo& info : file.tensors()) specs.push_back({info.name, info.dtype, info.shape});
    const TempFolder out;
    WeightWriter writer(out.path(), specs, {.metadata = file.metadata()});
    writer.create_files();
    for (const TensorInfo& info : file.tensors()) writer.write(info.name, file.tensor(info.name));
    writer.sync();
    EXPECT_TRUE(file_bytes(out / "model.safetensors") == file_bytes(file.path()));
  }
}

TEST(GoldenHf, hf_configs_are_strict_json) {
  for (const fs::path& folder : golden_models())
    EXPECT_FALSE(io::read_json_file(folder / "config.json").fields().required<std::string>("model_type").empty());
}

}  // namespace
}  // namespace megalith::hf

#include "megalith/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::checkpoint {
namespace {

using testing::expect_error;

Manifest some_manifest() {
  return {.step = 7,
          .layout = {.world_size = 8, .tp = 2, .pp = 2, .vpp = 2, .distributed_optimizer = true},
          .holds = {"model", "optimizer"},
          .files = {{"model.safetensors", kChunkBytes + 1, {1, 0xfedcba98}}, {"notes.txt", 3, {5}}}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Manifest, IsReadBack) {
  const Manifest manifest = some_manifest();
  EXPECT_EQ(Manifest::from_json(manifest.to_json(), "m"), manifest);
  EXPECT_TRUE(manifest.has("optimizer"));
  EXPECT_FALSE(manifest.has("rng"));
  EXPECT_EQ(manifest.total_bytes(), kChunkBytes + 4);
  EXPECT_EQ(manifest.layout.in_words(), "8 ranks, tp 2, pp 2, vpp 2, etp 1, distributed optimizer");
}

TEST(Manifest, RefusesForeignFiles) {
  const std::string text = some_manifest().to_json();
  const auto read = [](const std::string& changed) { return [changed] { Manifest::from_json(changed, "the-file"); }; };
  expect_error<DataError>(read("{"), {"the-file"});
  expect_error<DataError>(read("[]"), {"the-file", "not the manifest of a Megalith checkpoint"});
  expect_error<DataError>(read(R"({"format": "zarr", "version": 1})"), {"the-file", "megalith-checkpoint"});
  expect_error<DataError>(read(replaced(text, "\"version\": 1", "\"version\": 3")), {"version 3", "up to 2", "newer"});
  expect_error<DataError>(read(replaced(text, "\"step\": 7", "\"step\": 8")), {"was changed after it was written"});
  expect_error<DataError>(read(replaced(text, "fedcba98", "fedcba99")), {"was changed after it was written"});
}

TEST(Manifest, SaysWhyAFolderIsNotACheckpoint) {
  const testing::TempFolder folder;
  expect_error<DataError>([&] { read_manifest(folder / "nothing"); }, {"nothing", "not a folder"});
  expect_error<DataError>([&] { read_manifest(folder.path()); },
                          {folder.path().string(), "no manifest.json", "model_name_or_path"});
}

}  // namespace
}  // namespace megalith::checkpoint

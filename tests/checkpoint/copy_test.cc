#include "megalith/checkpoint/copy.h"

#include <gtest/gtest.h>

#include "megalith/checkpoint/state_files.h"
#include "megalith/checkpoint/verify.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::checkpoint {
namespace {

using testing::expect_error;
using testing::TempFolder;

TEST(CopyCheckpoint, HoldsTheSameInOtherFiles) {
  const TempFolder run;
  testing::save_small(run / "checkpoint-1", 1, 3);
  const Manifest copy = copy_checkpoint(run / "checkpoint-1", run / "copy", {.max_shard_bytes = 50});
  EXPECT_EQ(copy, read_manifest(run / "copy"));
  EXPECT_TRUE(problems_of_content(run / "copy", copy).empty());
  EXPECT_EQ(
      testing::names_in(run / "copy"),
      (std::vector<std::string>{"manifest.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                "model.safetensors.index.json", "notes.txt", "rng.safetensors"}));
  EXPECT_EQ(copy.layout, read_manifest(run / "checkpoint-1").layout);
  const at::Tensor t = at::empty({8, 6});
  StateFiles(run / "copy", copy, "model").read({"t", {8, 6}, {0, 0}, t, 0});
  testing::expect_identical(t, at::arange(48, at::kFloat).view({8, 6}) + 3, "t");
  EXPECT_EQ(StateFiles(run / "copy", copy, "rng").bytes("rank-1"), "state of rank 1");
}

TEST(CopyCheckpoint, RefusesWhatIsBroken) {
  const TempFolder run;
  testing::save_small(run / "checkpoint-1");
  expect_error<ConfigError>([&] { copy_checkpoint(run / "checkpoint-1", run / "checkpoint-1", {}); },
                            {"choose another folder"});
  testing::flip_byte(run / "checkpoint-1" / "rng.safetensors", 90);
  expect_error<DataError>([&] { copy_checkpoint(run / "checkpoint-1", run / "copy", {}); },
                          {"checkpoint-1 is broken", "rng.safetensors"});
  EXPECT_FALSE(std::filesystem::exists(run / "copy"));
}

TEST(AddManifest, MakesAModelACheckpoint) {
  const TempFolder folder;
  io::write_text_file(folder / "config.json", "{}");
  add_manifest(folder.path());
  const Manifest manifest = read_manifest(folder.path());
  EXPECT_EQ(manifest.holds, std::vector<std::string>{"model"});
  EXPECT_TRUE(problems_of_content(folder.path(), manifest).empty());
  io::write_text_file(folder / "config.json", "[]");
  EXPECT_EQ(problems_of_content(folder.path(), manifest).size(), 1);
}

}  // namespace
}  // namespace megalith::checkpoint

#include "megalith/peft/adapter_folder.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

void make_adapter(const fs::path& folder, bool weights = true) {
  io::make_folders(folder);
  io::write_text_file(folder / "adapter_config.json", "{}");
  if (weights) io::write_text_file(folder / "adapter_model.safetensors", "");
}

std::string refusal(const fs::path& folder) {
  try {
    peft::find_adapter(folder.string());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing is wrong";
}

TEST(AdapterFolder, IsItselfOrTheOnlyOneInIt) {
  const TempFolder temp;
  make_adapter(temp / "run" / "default");
  EXPECT_EQ(peft::find_adapter((temp / "run" / "default").string()), temp / "run" / "default");
  EXPECT_EQ(peft::find_adapter((temp / "run").string()), temp / "run" / "default");
  EXPECT_EQ(peft::find_adapter("run", temp.path()), temp / "run" / "default");
  EXPECT_FALSE(peft::is_adapter_folder(temp / "run"));
}

TEST(AdapterFolder, SeveralAreListed) {
  const TempFolder temp;
  make_adapter(temp / "run" / "german");
  make_adapter(temp / "run" / "english");
  const std::string said = refusal(temp / "run");
  expect_contains(said, "english and german");
  expect_contains(said, (temp / "run" / "english").string());
}

// peft writes "default" into the folder itself, and the others into folders in it.
TEST(AdapterFolder, ChosenByName) {
  const TempFolder temp;
  make_adapter(temp / "run");
  make_adapter(temp / "run" / "german");
  const fs::path base = temp / "run";
  EXPECT_EQ(peft::find_adapter("german", base), base / "german");
  EXPECT_EQ(peft::find_adapter("default", base), base);
  EXPECT_EQ(peft::find_adapter(base.string(), "german"), base / "german");
  make_adapter(base / "default");
  EXPECT_EQ(peft::find_adapter("default", base), base / "default");
  EXPECT_THROW(peft::find_adapter("french", base), ConfigError);
}

TEST(AdapterFolder, WhatIsMissingIsNamed) {
  const TempFolder temp;
  expect_contains(refusal(temp / "nowhere"), "it is not a folder");
  expect_contains(refusal(temp.path()), "is not an adapter");
  make_adapter(temp / "half", /*weights=*/false);
  expect_contains(refusal(temp / "half"), "has no adapter_model.safetensors");
  io::write_text_file(temp / "half" / "adapter_model.bin", "");
  expect_contains(refusal(temp / "half"), "pickle");
}

}  // namespace
}  // namespace megalith::testing

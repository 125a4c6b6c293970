#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "megalith/base/error.h"
#include "tests/config/parse_support.h"
#include "tests/support/golden.h"

namespace megalith::config {
namespace {

// Options that may be refused in a list that others use: features that docs/options.md says Megalith lacks.
const Words kLackingFeatures{"moe_token_dispatcher_type",
                             "moe_enable_deepep",
                             "tp_comm_overlap_cfg",
                             "fsdp",
                             "use_torch_fsdp2",
                             "use_megatron_fsdp",
                             "push_to_hub",
                             "do_predict",
                             "fim_data",
                             "use_galore",
                             "spec",
                             "torch_compile"};

Words words_in(const std::string& file) {
  Words words;
  for (const std::string& line : testing::golden_lines("options/" + file))
    for (const std::string& word : shell_words(line)) words.push_back(word);
  return words;
}

void check_list(const std::filesystem::path& file) {
  SCOPED_TRACE(file.string());
  const bool is_roll = file.filename().string().starts_with("roll_");
  const Words words = words_in(file.filename().string());
  ParseResult result;
  try {
    result = parse_arguments(is_roll ? Dialect::kTrain : Dialect::kPretrain, words);
  } catch (const ConfigError& error) {
    ADD_FAILURE() << error.what();
    return;
  }
  std::cout << file.filename().string() << "\n";
  for (const OptionUse& use : result.report.uses)
    std::cout << "  " << use.given << " = " << use.value << ": " << to_string(use.status)
              << (use.reason.empty() ? "" : " (" + use.reason + ")") << "\n";
  for (const OptionUse* use : result.report.refused())
    EXPECT_NE(std::ranges::find(kLackingFeatures, use->name), kLackingFeatures.end())
        << use->given << " is refused (" << use->reason << ") but is not among the features that Megalith lacks";
}

// Whatever lists the folder holds.
TEST(GoldenOptions, options_txt_lists) {
  const auto files = testing::golden_files("options", ".txt");
  if (files.empty()) testing::skip_without_golden("options/*.txt");
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string();
    ASSERT_TRUE(name.starts_with("roll_") || name.starts_with("megatron_")) << name << " names no dialect";
    check_list(file);
  }
}

// Every option of these lists acts.
TEST(OptionLists, NothingIsIgnored) {
  EXPECT_NO_THROW(parse(words_in("roll_sft.txt")).report.check_runnable());
  EXPECT_NO_THROW(parse(words_in("roll_dpo.txt")).report.check_runnable());
  for (const char* list : {"megatron_gpt3_175b.txt", "megatron_llama3_8b.txt"})
    EXPECT_NO_THROW(parse(words_in(list), Dialect::kPretrain).report.check_runnable()) << list;
}

}  // namespace
}  // namespace megalith::config

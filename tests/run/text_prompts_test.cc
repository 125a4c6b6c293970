#include "megalith/run/samples/text_prompts.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using testing::expect_error;
using testing::TempFolder;
using tokenizer::Tokenizer;
using train::Prompt;

Prompt ids_of(const std::string& text) {
  Prompt prompt{256};  // BOS
  for (const char c : text) prompt.push_back(static_cast<unsigned char>(c));
  return prompt;
}

std::filesystem::path written(const TempFolder& folder, const std::string& text) {
  std::ofstream(folder / "prompts.txt", std::ios::binary) << text;
  return folder / "prompts.txt";
}

TEST(TextPrompts, ALineIsATextOrJson) {
  const TempFolder folder;
  const TextTools tools{Tokenizer::bytes(), {}};
  const auto prompts = read_prompts(written(folder, "Once upon\r\n\n\"two\\nlines\"\n {x}\n"), tools);
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts[0], ids_of("Once upon"));
  EXPECT_EQ(prompts[1], ids_of("two\nlines"));
  EXPECT_EQ(prompts[2], ids_of(" {x}"));
}

TEST(TextPrompts, WrongFilesAreNamed) {
  const TempFolder folder;
  const TextTools tools{Tokenizer::bytes(), folder.path()};
  expect_error<ConfigError>([&] { read_prompts(folder / "none.txt", tools); },
                            {"generate_samples_prompts", "none.txt is not a file"});
  expect_error<DataError>([&] { read_prompts(written(folder, "\n\n"), tools); }, {"holds no prompt"});
  expect_error<DataError>([&] { read_prompts(written(folder, "fine\n\"open\n"), tools); },
                          {"prompts.txt, line 2", "JSON string"});
  expect_error<ConfigError>(
      [&] {
        read_prompts(written(folder, R"([{"role":"user","content":"Hi"}])"
                                     "\n"),
                     tools);
      },
      {"line 1", "chat template"});
}

TEST(TextPrompts, RunsWithoutTextsAreRefused) {
  const SampleSettings settings{.every = 10};
  expect_error<ConfigError>([&] { check_samples(settings, {}); }, {"generate_samples_every", "no tokenizer"});
  expect_error<ConfigError>(
      [&] {
        make_text_sampler(settings, {Tokenizer::bytes(), {}}, nullptr);
      },
      {"generate_samples_every has no prompts", "generate_samples_prompts"});
  EXPECT_EQ(make_text_sampler({}, {}, nullptr), nullptr);
}

}  // namespace
}  // namespace megalith::run

// `megalith tokenize` as a process: lines in, lines out.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

// The program with `input` on stdin; `options` as a shell would read them.
ProcessResult tokenize(const std::string& options, const std::string& input) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"input", input}});
  const std::string command =
      std::string(MEGALITH_PROGRAM) + " tokenize " + options + " < " + (folder.path() / "input").string();
  return run_process({"/bin/sh", "-c", command});
}

std::string with_gpt2() { return "--tokenizer " + tokenizer_folder("gpt2").string(); }

TEST(Tokenize, GoldenStringsThereAndBack) {
  const json strings = golden_json("hf/tokenizer/strings.json").at("strings");
  const json ids = golden_json("hf/tokenizer/gpt2.json").at("ids");
  std::string text_lines, id_lines;
  for (const json& text : strings) text_lines += text.dump() + "\n";
  for (const json& list : ids) id_lines += list.dump() + "\n";
  const auto encoded = tokenize(with_gpt2(), text_lines);
  EXPECT_EQ(encoded.exit_code, 0) << encoded.err;
  EXPECT_EQ(encoded.out, id_lines);
  const auto decoded = tokenize(with_gpt2() + " --decode", id_lines);
  EXPECT_EQ(decoded.exit_code, 0) << decoded.err;
  EXPECT_EQ(decoded.out, text_lines);
}

TEST(Tokenize, SpecialTokensAreLeftOutOnRequest) {
  EXPECT_EQ(tokenize(with_gpt2() + " --decode", "[64,50256]\n").out, "\"a<|endoftext|>\"\n");
  EXPECT_EQ(tokenize(with_gpt2() + " --decode --skip-special-tokens", "[64,50256]\n").out, "\"a\"\n");
}

TEST(Tokenize, ALastLineWithoutItsEndCounts) { EXPECT_EQ(tokenize(with_gpt2(), "\"a\"").out, "[64]\n"); }

TEST(Tokenize, NothingInNothingOut) {
  const auto result = tokenize(with_gpt2(), "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
}

// The lines before a bad one are answered; the bad one is named.
void expect_bad_line(const std::string& options, const std::string& input, const std::string& out,
                     const std::string& part) {
  const auto result = tokenize(with_gpt2() + options, input);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, out);
  expect_contains(result.err, part);
}

TEST(Tokenize, BadLinesAreNamed) {
  expect_bad_line("", "\"a\"\n\"b\n", "[64]\n", "line 2:");
  expect_bad_line("", "\"a\"\n\n", "[64]\n", "line 2:");
  expect_bad_line("", "5\n", "", "line 1: number is given; a string is expected");
  expect_bad_line("", "\"\xFF\"\n", "", "line 1:");
  expect_bad_line(" --decode", "[64]\n[50257]\n", "\"a\"\n", "line 2: 50257 is not a token id");
  expect_bad_line(" --decode", "[-1]\n", "", "line 1: -1 is not a token id");
  expect_bad_line(" --decode", "[1.5]\n", "", "line 1: 1.5 is not a token id");
  expect_bad_line(" --decode", "\"a\"\n", "", "an array of token ids is expected");
}

TEST(Tokenize, BadOptionsAreRefused) {
  const auto refused = [](const std::string& options, const std::string& part) {
    const auto result = tokenize(options, "");
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, part);
  };
  refused("", "--tokenizer is missing");
  refused("--tokenizer /no/such/folder", "/no/such/folder is not a folder");
  refused(with_gpt2() + " --skip_special_tokens", "--skip_special_tokens needs --decode");
  refused(with_gpt2() + " --decode --add_special_tokens", "--add_special_tokens is for text to ids");
  refused(with_gpt2() + " --decodee", "decode");
}

std::string with_qwen3() { return "--tokenizer " + tokenizer_folder("qwen3").string() + " --chat"; }

TEST(Tokenize, ConversationsGiveTextIdsAndMask) {
  using nlohmann::ordered_json;
  const ordered_json inputs = ordered_json::parse(golden_text("hf/chat/messages.json"));
  const ordered_json golden = ordered_json::parse(golden_text("hf/chat/qwen3.json"));
  std::string lines;
  for (const ordered_json& expected : golden)
    for (const ordered_json& input : inputs)
      if (input.at("name") == expected.at("name"))
        lines += (input.contains("tools") ? input : input.at("messages")).dump() + "\n";
  const auto result = tokenize(with_qwen3(), lines);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream out(result.out);
  for (const ordered_json& expected : golden) {
    std::string line;
    ASSERT_TRUE(std::getline(out, line));
    const ordered_json given = ordered_json::parse(line);
    const ordered_json wanted{
        {"text", expected.at("text")}, {"ids", expected.at("ids")}, {"assistant_mask", expected.at("assistant_mask")}};
    EXPECT_EQ(given, wanted) << expected.at("name");
  }
}

TEST(Tokenize, TemplatesGetTheirArguments) {
  const std::string line = R"([{"role":"user","content":"Hi"}])";
  const std::string start = "<|im_start|>user\nHi<|im_end|>\n";
  const auto text = [&](const std::string& options, const std::string& input) {
    const auto result = tokenize(with_qwen3() + options, input + "\n");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out).at("text").get<std::string>();
  };
  EXPECT_EQ(text("", line), start);
  EXPECT_EQ(text(" --add_generation_prompt", line), start + "<|im_start|>assistant\n");
  const std::string quiet = start + "<|im_start|>assistant\n<think>\n\n</think>\n\n";
  EXPECT_EQ(text(" --add_generation_prompt --chat_template_kwargs '{\"enable_thinking\": false}'", line), quiet);
  EXPECT_EQ(text(" --add_generation_prompt",
                 "{\"messages\":" + line + R"(,"chat_template_kwargs":{"enable_thinking":false},"tools":null})"),
            quiet);
}

TEST(Tokenize, BadConversationsAreNamed) {
  const auto refused = [](const std::string& options, const std::string& input, const std::string& part) {
    const auto result = tokenize(options, input);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, part);
  };
  refused(with_qwen3(), "5\n", "line 1: number is given; a list of messages");
  refused(with_qwen3(), "{\"text\":\"a\"}\n", "line 1: an object without \"messages\"");
  refused(with_qwen3(), "[5]\n", "line 1: message 0");
  refused(with_qwen3(), "[{\"role\":\"user\"}]\n", "line 1: ");
  refused(with_qwen3() + " --decode", "", "--chat goes with neither");
  refused(with_qwen3() + " --chat_template_kwargs 5", "", "chat_template_kwargs is 5");
  refused(with_qwen3() + " --chat_template nope", "[]\n", "no chat template named \"nope\"");
  refused(with_gpt2() + " --chat", "", "no chat template");
  refused(with_gpt2() + " --add_generation_prompt", "", "need --chat");
}

TEST(Tokenize, HelpTellsTheFormat) {
  const auto help = tokenize("--help", "");
  EXPECT_EQ(help.exit_code, 0) << help.err;
  expect_contains(help.out, "--decode");
}

}  // namespace
}  // namespace megalith::testing

// Ids and texts of real tokenizers against those of Hugging Face's library (golden/hf/tokenizer).
#include <gtest/gtest.h>

#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using nlohmann::json;

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const DecodeOptions& options) {
  Tokenizer::StreamDecoder stream(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

void expect_decoded(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const std::string& text,
                    const std::string& without_special) {
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), without_special);
  EXPECT_EQ(streamed(tokenizer, ids, {}), text);
  EXPECT_EQ(streamed(tokenizer, ids, {.skip_special_tokens = true}), without_special);
}

void compare_tokens_with_golden(const std::string& name) {
  const Tokenizer tokenizer = Tokenizer::from_folder(testing::tokenizer_folder(name));
  const auto strings = testing::golden_json("hf/tokenizer/strings.json").at("strings").get<std::vector<std::string>>();
  const json golden = testing::golden_json("hf/tokenizer/" + name + ".json");
  ASSERT_EQ(golden.at("ids").size(), strings.size());
  for (size_t i = 0; i < strings.size(); ++i) {
    SCOPED_TRACE("string " + std::to_string(i) + " of " + name + ": " + json(strings[i]).dump());
    const auto ids = golden.at("ids")[i].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(strings[i]), ids);
    const std::string key = std::to_string(i);
    const std::string text = golden.at("decoded").value(key, strings[i]);
    expect_decoded(tokenizer, ids, text, golden.at("decoded_skip_special").value(key, text));
  }
  for (const json& c : golden.at("decode_only")) {
    SCOPED_TRACE("decode_only of " + name + ": " + c.dump());
    expect_decoded(tokenizer, c.at("ids").get<std::vector<int32_t>>(), c.at("text"), c.at("text_skip_special"));
  }
  EXPECT_EQ(tokenizer.encode_batch(strings, {}, 3), golden.at("ids").get<std::vector<std::vector<int32_t>>>());
}

TEST(GoldenTokenizer, gpt2_json_strings) { compare_tokens_with_golden("gpt2"); }
TEST(GoldenTokenizer, qwen2_5_json_strings) { compare_tokens_with_golden("qwen2_5"); }
TEST(GoldenTokenizer, qwen3_json_strings) { compare_tokens_with_golden("qwen3"); }
TEST(GoldenTokenizer, deepseek_v3_json_strings) { compare_tokens_with_golden("deepseek_v3"); }

// Golden files of other tokenizers, when the golden folder has any and the tokenizer is at hand.
TEST(GoldenTokenizer, tokenizer_folder_has_no_other_files) {
  std::string missing;
  for (const auto& entry : std::filesystem::directory_iterator(testing::golden_dir() / "hf/tokenizer")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || name == "strings") continue;
    if (name == "gpt2" || name == "qwen2_5" || name == "qwen3" || name == "deepseek_v3") continue;
    if (std::filesystem::exists(testing::tokenizer_folder(name))) {
      compare_tokens_with_golden(name);
    } else {
      missing += " " + name;
    }
  }
  if (!missing.empty()) GTEST_SKIP() << "no tokenizer files for" << missing;
}

}  // namespace
}  // namespace megalith::tokenizer

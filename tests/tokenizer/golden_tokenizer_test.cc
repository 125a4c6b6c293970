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

// Every file of the folder whose tokenizer is at hand.
TEST(GoldenTokenizer, tokenizer_json_strings) {
  int compared = 0;
  for (const auto& file : testing::golden_files("hf/tokenizer", ".json")) {
    const std::string name = file.stem().string();
    if (name == "strings") continue;
    if (!std::filesystem::exists(testing::tokenizer_folder(name))) {
      testing::leave_out(name, "its tokenizer is not at hand");
      continue;
    }
    compare_tokens_with_golden(name);
    ++compared;
  }
  if (compared == 0) testing::skip_without_golden("hf/tokenizer/*.json of a tokenizer that is at hand");
}

}  // namespace
}  // namespace megalith::tokenizer

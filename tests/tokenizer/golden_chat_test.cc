// Conversations against Hugging Face's library (golden/hf/chat): texts, ids, training masks, turns.
#include <gtest/gtest.h>

#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/text/python_text.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

Json golden_chat(const std::string& name) { return Json::parse(testing::golden_text("hf/chat/" + name + ".json")); }

Conversation conversation_of(const Json& c) { return {c.at("messages"), c.value("tools", Json()), Json()}; }

Json first_messages(const Json& messages, size_t count) {
  Json result = Json::array();
  for (size_t i = 0; i < count; ++i) result.push_back(messages[i]);
  return result;
}

void compare_case(const Json& input, const Json& expected, const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const Conversation conversation = conversation_of(input);
  const ChatEncoding encoded = chat.apply(conversation, tokenizer);
  EXPECT_EQ(encoded.text, expected.at("text").get<std::string>());
  EXPECT_EQ(encoded.ids, expected.at("ids").get<Ids>());
  EXPECT_EQ(encoded.assistant_mask, expected.at("assistant_mask").get<std::vector<uint8_t>>());

  const auto spans = chat.assistant_spans(conversation, encoded.text, tokenizer);
  const Json& wanted = expected.at("spans");
  ASSERT_EQ(spans.size(), wanted.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].message, wanted[i].at("message").get<size_t>());
    EXPECT_EQ(spans[i].begin, wanted[i].at("start_byte").get<size_t>());
    EXPECT_EQ(spans[i].end, wanted[i].at("end_byte").get<size_t>());
  }
  const auto turns = chat.turns(conversation, tokenizer);
  ASSERT_EQ(turns.size(), expected.at("turns").size());
  for (size_t i = 0; i < turns.size(); ++i) {
    const Json& turn = expected.at("turns")[i];
    EXPECT_EQ(turns[i].message, turn.at("message").get<size_t>());
    EXPECT_EQ(turns[i].prompt_ids, turn.at("prompt_ids").get<Ids>());
    EXPECT_EQ(turns[i].response_ids, turn.at("response_ids").get<Ids>());
  }
}

void compare_prompt(const Json& input, const Json& prompt, const ChatTemplate& chat, const Tokenizer& tokenizer) {
  Conversation conversation = conversation_of(input);
  conversation.messages = first_messages(input.at("messages"), prompt.at("messages"));
  ChatOptions options{.add_generation_prompt = true};
  const std::string text = chat.render(conversation, options);
  EXPECT_EQ(text, prompt.at("text").get<std::string>());
  EXPECT_EQ(tokenizer.encode(text), prompt.at("ids").get<Ids>());
  if (!prompt.contains("text_no_thinking")) return;
  options.kwargs["enable_thinking"] = false;
  EXPECT_EQ(chat.render(conversation, options), prompt.at("text_no_thinking").get<std::string>());
}

void compare_chat_with_golden(const std::string& name) {
  const auto folder = testing::tokenizer_folder(name);
  const auto tokenizer = Tokenizer::from_folder(folder);
  const auto chat = ChatTemplate::from_folder(folder);
  const Json inputs = golden_chat("messages");
  for (const Json& expected : golden_chat(name)) {
    const std::string case_name = expected.at("name");
    SCOPED_TRACE(name + ", " + case_name);
    const auto input = std::ranges::find_if(inputs, [&](const Json& c) { return c.at("name") == case_name; });
    ASSERT_NE(input, inputs.end());
    compare_case(*input, expected, chat, tokenizer);
    if (expected.contains("generation_prompt"))
      compare_prompt(*input, expected.at("generation_prompt"), chat, tokenizer);
  }
}

// Every file of the folder whose tokenizer is at hand.
TEST(GoldenChat, chat_json_conversations) {
  int compared = 0;
  for (const auto& file : testing::golden_files("hf/chat", ".json")) {
    const std::string name = file.stem().string();
    if (name == "messages") continue;
    if (!std::filesystem::exists(testing::tokenizer_folder(name))) {
      testing::leave_out(name, "its tokenizer is not at hand");
      continue;
    }
    compare_chat_with_golden(name);
    ++compared;
  }
  if (compared == 0) testing::skip_without_golden("hf/chat/*.json of a tokenizer that is at hand");
}

}  // namespace
}  // namespace megalith::tokenizer

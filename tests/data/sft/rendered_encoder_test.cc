#include "megalith/data/sft/rendered_encoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/sft/encode.h"

namespace megalith::data {
namespace {

// "u:" and the content for others, "a:" and the content for the assistant, whose content and "." it writes; a blank
// between messages.
RenderedConversation render(const io::Json& messages, const io::Json& tools) {
  const auto tokenizer = tokenizer::Tokenizer::bytes();
  RenderedConversation result;
  const auto add = [&](const std::string& text, uint8_t mask) {
    for (const int32_t id : tokenizer.encode(text)) {
      result.ids.push_back(id);
      result.assistant_mask.push_back(mask);
    }
  };
  if (!tools.is_null()) add("tools ", 0);
  for (const io::Json& message : messages) {
    const bool assistant = message.at("role") == "assistant";
    add(message.at("role").get<std::string>().substr(0, 1) + ":", 0);
    add(message.at("content").get<std::string>() + ".", assistant ? 1 : 0);
    add(" ", 0);
  }
  return result;
}

Conversation two_turns_and_an_alternative() {
  return {.prompt = {{Role::kUser, "Q1"}, {Role::kAssistant, "A1"}, {Role::kUser, "Q2"}},
          .responses = {{Role::kAssistant, "A2"}, {Role::kAssistant, "B2"}},
          .system = "S"};
}

std::string decoded(const std::vector<int32_t>& ids) { return tokenizer::Tokenizer::bytes().decode(ids); }

TEST(RenderedTurnEncoder, cuts_by_what_the_assistant_writes) {
  const RenderedTurnEncoder encoder(render, {}, "test");
  const auto turns = encoder.turns(two_turns_and_an_alternative(), false);
  ASSERT_EQ(turns.size(), 2U);
  EXPECT_EQ(decoded(turns[0].source) + "|" + decoded(turns[0].target), "s:S. u:Q1. a:|A1.");
  EXPECT_EQ(decoded(turns[1].source) + "|" + decoded(turns[1].target), " u:Q2. a:|A2.");
  const EncodedTurn rejected = encoder.answer(two_turns_and_an_alternative(), 1);
  EXPECT_EQ(decoded(rejected.source) + "|" + decoded(rejected.target), "s:S. u:Q1. a:A1. u:Q2. a:|B2.");
  const Sequence row = encode_conversation(two_turns_and_an_alternative(), encoder, {});
  EXPECT_EQ(decoded(row.ids), "s:S. u:Q1. a:A1. u:Q2. a:A2.");
}

TEST(RenderedTurnEncoder, functions_become_tool_calls) {
  Conversation conversation = two_turns_and_an_alternative();
  conversation.prompt[1] = {Role::kFunction, R"({"name": "f", "arguments": {}})"};
  conversation.prompt[2].role = Role::kObservation;
  EXPECT_EQ(openai_messages(conversation, 0).dump(),
            R"([{"role":"system","content":"S"},{"role":"user","content":"Q1"},{"role":"assistant","content":"",)"
            R"("tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]},)"
            R"({"role":"tool","content":"Q2"},{"role":"assistant","content":"A2"}])");
  conversation.prompt[1].content = "no JSON";
  EXPECT_THROW(openai_messages(conversation, 0), DataError);
}

TEST(RenderedTurnEncoder, a_template_that_writes_no_answer_is_refused) {
  const auto nothing = [](const io::Json&, const io::Json&) { return RenderedConversation{{1, 2}, {0, 0}}; };
  EXPECT_THROW(RenderedTurnEncoder(nothing, {}, "test").turns(two_turns_and_an_alternative(), false), DataError);
}

}  // namespace
}  // namespace megalith::data

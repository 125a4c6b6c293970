// Where templates come from, what they are given, and which tokens are trained.
#include "megalith/tokenizer/chat/chat_template.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;
using Files = TemporaryFolder::Files;

Conversation chat_of(const std::string& messages) { return {Json::parse(messages), Json(), Json()}; }

const char* const kHi = R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"}])";

std::string config(const Json& chat_template) {
  return Json{{"chat_template", chat_template}, {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}}.dump();
}

std::string rendered(const TemporaryFolder& folder, const ChatOptions& options = {}, const Json& tools = Json()) {
  return ChatTemplate::from_folder(folder.path()).render({Json::parse(kHi), tools, Json()}, options);
}

TEST(ChatTemplate, TheConfigHoldsOneOrSeveral) {
  const TemporaryFolder one(
      Files{{"tokenizer_config.json", config("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")}});
  EXPECT_TRUE(ChatTemplate::is_in(one.path()));
  EXPECT_EQ(rendered(one), "<s>Hi</s>");
  const Json list = {{{"name", "default"}, {"template", "plain"}},
                     {{"name", "tool_use"}, {"template", "tools"}},
                     {{"name", "rag"}, {"template", "rag"}}};
  const TemporaryFolder several(Files{{"tokenizer_config.json", config(list)}});
  EXPECT_EQ(rendered(several), "plain");
  EXPECT_EQ(rendered(several, {}, Json::array()), "tools");
  EXPECT_EQ(rendered(several, {.template_name = "rag"}), "rag");
  EXPECT_EQ(ChatTemplate::from_folder(several.path()).names(),
            (std::vector<std::string>{"default", "rag", "tool_use"}));
  expect_error<ConfigError>([&] { rendered(several, {.template_name = "x"}); }, {"\"x\"", "default, rag and tool_use"});
}

TEST(ChatTemplate, FilesComeBeforeTheConfig) {
  const TemporaryFolder folder(
      Files{{"tokenizer_config.json", config("config")}, {"chat_template.jinja", "file {{ bos_token }}"}});
  EXPECT_EQ(rendered(folder), "file <s>");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  folder.write("additional_chat_templates/tool_use.jinja", "more");
  EXPECT_EQ(rendered(folder), "file <s>");
  EXPECT_EQ(rendered(folder, {}, Json::array()), "more");
}

TEST(ChatTemplate, SpecialTokensAlsoComeFromTheMap) {
  const TemporaryFolder folder(
      Files{{"chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"},
            {"special_tokens_map.json", R"({"bos_token":"<b>","eos_token":{"content":"<e>"}})"}});
  EXPECT_EQ(rendered(folder), "<b><e>False");
}

TEST(ChatTemplate, WhatIsMissingOrBrokenIsNamed) {
  const TemporaryFolder none(Files{{"tokenizer_config.json", "{}"}});
  EXPECT_FALSE(ChatTemplate::is_in(none.path()));
  expect_error<DataError>([&] { rendered(none); }, {none.path().string(), "no chat template", "chat_template.jinja"});
  expect_error<DataError>([&] { ChatTemplate::from_folder(none.path() / "x"); }, {"is not a folder"});
  const TemporaryFolder broken(Files{{"chat_template.jinja", "a\n{% if %}"}});
  expect_error<DataError>([&] { rendered(broken); }, {"chat_template.jinja:2:", "expected an expression"});
  const TemporaryFolder wrong(Files{{"tokenizer_config.json", config(5)}});
  expect_error<DataError>([&] { rendered(wrong); }, {"tokenizer_config.json", "chat_template"});
  const ChatTemplate plain("{{ messages }}", "plain");
  expect_error<DataError>([&] { plain.render(chat_of("{}")); }, {"messages", "object", "list"});
  expect_error<DataError>([&] { plain.render(chat_of("[1]")); }, {"message 0", "number"});
  expect_error<DataError>([&] { plain.render({Json::array(), Json{1}, Json()}); }, {"tools[0]"});
  expect_error<DataError>([&] { plain.render({Json::array(), Json(), Json(3)}); }, {"documents"});
}

TEST(ChatTemplate, KwargsPassThroughAndReasoningHasTwoNames) {
  const ChatTemplate chat(
      "{{ enable_thinking }} {{ messages[0].reasoning_content }} {{ messages[0].thinking }} {{ tools }} {{ "
      "add_generation_prompt }}",
      "t");
  ChatOptions options;
  options.kwargs["enable_thinking"] = false;
  EXPECT_EQ(chat.render(chat_of(R"([{"role":"assistant","content":"x","reasoning":"why"}])"), options),
            "False why why None False");
  EXPECT_EQ(ChatTemplate("{{ messages[0] }}", "t").render(chat_of(R"([{"role":"a","thinking":"q"}])")),
            "{'thinking': 'q', 'role': 'a', 'reasoning_content': 'q'}");
}

// ChatML with the byte tokenizer: one token per byte, so that masks can be read.
std::string masked(const std::string& source, const std::string& messages, const ChatOptions& options = {}) {
  const ChatEncoding encoded = ChatTemplate(source, "t").apply(chat_of(messages), Tokenizer::bytes(), options);
  std::string trained;
  for (size_t i = 0; i < encoded.ids.size(); ++i)
    trained += encoded.assistant_mask[i] != 0 ? static_cast<char>(encoded.ids[i]) : '.';
  return trained;
}

constexpr const char* kPlain =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
constexpr const char* kTwoTurns =
    R"([{"role":"user","content":"u1"},{"role":"assistant","content":"a1"},{"role":"user","content":"u2"},{"role":"assistant","content":"é2"}])";

TEST(ChatTemplate, TheMaskFollowsTheMessages) {
  EXPECT_EQ(masked(kPlain, kTwoTurns), ".......a1;.......é2;");
  EXPECT_EQ(masked(kPlain, R"([{"role":"user","content":"u"}])"), "....");
  EXPECT_EQ(masked(kPlain, kHi, {.add_generation_prompt = true}), ".......Yo;..");
}

TEST(ChatTemplate, TheMaskFollowsGenerationBlocks) {
  EXPECT_EQ(
      masked("{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
             "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}",
             kTwoTurns),
      ".......a1........é2.");
}

TEST(ChatTemplate, AMessageThatChangesWithWhatFollowsIsFoundByItsContent) {
  // The last message is written differently, and the byte tokenizer has no special token that opens messages.
  EXPECT_EQ(
      masked("{% for m in messages %}{{ m.role[0] }}:{{ '<think>' if loop.last }}{{ m.content }};{% endfor %}"
             "{% if add_generation_prompt %}a:{% endif %}",
             R"([{"role":"user","content":"u"},{"role":"assistant","content":"a1"},{"role":"user","content":"v"}])"),
      "......a1............");
}

// As DeepSeek's template does for an assistant that says nothing and calls no tool.
TEST(ChatTemplate, AMessageWithoutContentTrainsNothing) {
  const char* const source =
      "{% for m in messages %}{% if m.content is not none %}{{ m.role[0] }}:{{ m.content }};{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}";
  EXPECT_EQ(masked(source, R"([{"role":"user","content":"u"},{"role":"assistant","content":null},)"
                           R"({"role":"user","content":"v"},{"role":"assistant","content":"w"}])"),
            "..........w;");
}

TEST(ChatTemplate, AMessageThatIsNotThereIsNamed) {
  expect_error<DataError>([] { masked("{{ messages|length }}", kHi); }, {"message 1", "generation"});
}

TEST(ChatTemplate, TokenStartsCountBytes) {
  const auto tokenizer = Tokenizer::from_folder(testing::tokenizer_folder("qwen3"));
  const std::string text = "e\u0301 cafe\u0301<|im_start|>naı\u0308ve 가 \U0001F600!";
  const TokenizedText tokens = tokenizer.encode_with_starts(text);
  EXPECT_EQ(tokens.ids, tokenizer.encode(text));
  ASSERT_EQ(tokens.ids.size(), tokens.starts.size());
  EXPECT_TRUE(std::ranges::is_sorted(tokens.starts));
  // The text from a token's start to the next one is that token's text in normal form.
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    const size_t end = i + 1 < tokens.ids.size() ? tokens.starts[i + 1] : text.size();
    if (end == tokens.starts[i] || (i > 0 && tokens.starts[i - 1] == tokens.starts[i])) continue;  // share a character
    const auto again = tokenizer.encode(text.substr(tokens.starts[i], end - tokens.starts[i]));
    EXPECT_EQ(again[0], tokens.ids[i]) << i;
  }
  EXPECT_EQ(
      text.substr(tokens.starts[std::ranges::find(tokens.ids, *tokenizer.id_of("<|im_start|>")) - tokens.ids.begin()],
                  12),
      "<|im_start|>");
}

}  // namespace
}  // namespace megalith::tokenizer

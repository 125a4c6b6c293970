#include "megalith/data/sft/template.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/data/sft/encode.h"
#include "megalith/data/sft/python_json.h"
#include "megalith/data/sft/template_spec.h"
#include "megalith/data/sft/tool_format.h"
#include "nlohmann/json.hpp"
#include "tests/support/expect.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using testing::error_of;
using testing::expect_contains;
using tokenizer::Tokenizer;

// Byte by byte: ids decode to exactly the text that was encoded, and special tokens show by name.
std::string text_of(const std::vector<int32_t>& ids) { return Tokenizer::bytes().decode(ids); }

Conversation two_turns() {
  return {.prompt = {{Role::kUser, "Q1"}, {Role::kAssistant, "A1"}, {Role::kUser, "Q2"}},
          .responses = {{Role::kAssistant, "A2"}},
          .system = "S"};
}

std::string all_text(const std::string& name, const Conversation& conversation) {
  std::string text;
  for (const EncodedTurn& turn : Template(name, Tokenizer::bytes()).turns(conversation, false))
    text += text_of(turn.source) + "|" + text_of(turn.target) + "|";
  return text;
}

TEST(Template, texts_are_those_of_the_table) {
  EXPECT_EQ(all_text("default", two_turns()),
            "System: S<|eos|>\nHuman: Q1<|eos|>\nAssistant:|A1<|eos|>\n|Human: Q2<|eos|>\nAssistant:|A2<|eos|>\n|");
  EXPECT_EQ(all_text("mistral", two_turns()), "<|bos|>[INST] S\n\nQ1[/INST]| A1<|eos|>|[INST] Q2[/INST]| A2<|eos|>|");
  EXPECT_EQ(all_text("llama2", two_turns()),
            "<|bos|>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ1 [/INST]|A1<|eos|>|<|bos|>[INST] Q2 [/INST]|A2<|eos|>|");
  EXPECT_EQ(all_text("glm4", two_turns()),
            "[gMASK]<sop><|system|>\nS<|user|>\nQ1<|assistant|>|\nA1|<|user|>\nQ2<|assistant|>|\nA2|");
  EXPECT_EQ(all_text("seed_oss", two_turns()),
            "<|bos|>system\nS<|eos|><|bos|>user\nQ1<|eos|><|bos|>assistant\n|<seed:think></seed:think>A1<|eos|>|"
            "<|bos|>user\nQ2<|eos|><|bos|>assistant\n|<seed:think></seed:think>A2<|eos|>|");
  EXPECT_EQ(all_text("empty", two_turns()), "SQ1|A1|Q2|A2|");
  Conversation plain = two_turns();
  plain.system.clear();
  EXPECT_TRUE(all_text("vicuna", plain).starts_with("A chat between a curious user"));
  EXPECT_TRUE(all_text("alpaca", plain).starts_with("Below is an instruction"));
}

TEST(Template, content_with_marks_is_text) {
  const Conversation conversation{.prompt = {{Role::kUser, "{{content}}{{eos}}"}},
                                  .responses = {{Role::kAssistant, "x"}}};
  EXPECT_EQ(all_text("vicuna", conversation).find("USER: {{content}}{{eos}} ASSISTANT:") == std::string::npos, false);
}

// A question that quotes an end token does not end there; the template's own end tokens still do.
TEST(Template, special_tokens_in_contents_can_be_split) {
  const Conversation quoting{.prompt = {{Role::kUser, "a<|eos|>b"}}, .responses = {{Role::kAssistant, "<|eos|>"}}};
  const auto ends = [&](bool split) {
    const Template chat("default", Tokenizer::bytes(), {.split_special_tokens = split});
    const std::vector<EncodedTurn> turns = chat.turns(quoting, false);
    return std::pair{std::ranges::count(turns.at(0).source, 257), std::ranges::count(turns.at(0).target, 257)};
  };
  EXPECT_EQ(ends(false), (std::pair<std::ptrdiff_t, std::ptrdiff_t>{2, 2}));
  EXPECT_EQ(ends(true), (std::pair<std::ptrdiff_t, std::ptrdiff_t>{1, 1}));
  const auto description = [](bool split) {
    return Template("default", Tokenizer::bytes(), {.split_special_tokens = split}).description();
  };
  EXPECT_NE(description(true), description(false));  // caches of the one are not read by the other
  const TemplateTokens plain{.eos = 257, .document_end = "<|eos|>", .documents_are_plain = true};
  EXPECT_EQ(std::ranges::count(whole_document("x<|eos|>y", Tokenizer::bytes(), plain).ids, 257), 1);
}

TEST(Template, every_row_of_the_table_has_places_for_content) {
  for (const TemplateSpec& spec : template_specs()) {
    SCOPED_TRACE(std::string(spec.name));
    for (const std::string_view part : {spec.system, spec.user, spec.assistant, spec.observation})
      EXPECT_NE(part.find("{{content}}"), std::string_view::npos);
    EXPECT_EQ(&find_template(spec.name), &spec);
  }
}

TEST(Template, unknown_names_suggest_the_nearest) {
  const std::string error = error_of([] { find_template("qwen33"); });
  expect_contains(error, "did you mean qwen3");
  expect_contains(error, "seed_oss");
}

TEST(Template, a_missing_end_token_is_named) {
  expect_contains(error_of([] { Template("qwen", Tokenizer::bytes()); }),
                  "<|im_end|>, which the tokenizer does not have");
}

TEST(Template, thoughts_follow_the_options) {
  Conversation conversation = two_turns();
  conversation.prompt[1].content = "<think>\nT1\n</think>\n\nA1";
  const auto turns = [&](TemplateOptions options, bool last_only) {
    std::string text;
    for (const EncodedTurn& turn : Template("deepseekr1", Tokenizer::bytes(), options).turns(conversation, last_only))
      text += text_of(turn.source) + "|" + text_of(turn.target) + "|";
    return text;
  };
  const std::string q1 = "<|bos|>S<｜User｜>Q1<｜Assistant｜>", q2 = "<｜User｜>Q2<｜Assistant｜>";
  const std::string thought = "<think>\nT1\n</think>\n\n", empty = "<think>\n\n</think>\n\n";
  EXPECT_EQ(turns({}, false), q1 + "|" + thought + "A1<|eos|>|" + q2 + "|" + empty + "A2<|eos|>|");
  EXPECT_EQ(turns({.thinking = Thinking::kOff}, false), q1 + empty + "|A1<|eos|>|" + q2 + empty + "|A2<|eos|>|");
  EXPECT_EQ(turns({.thinking = Thinking::kUnset}, false),
            q1 + "|" + thought + "A1<|eos|>|" + q2 + empty + "|A2<|eos|>|");
  EXPECT_EQ(turns({}, true), q1 + "|A1<|eos|>|" + q2 + "|" + empty + "A2<|eos|>|");
  EXPECT_EQ(turns({.preserve_thinking = true}, true),
            q1 + "|" + thought + "A1<|eos|>|" + q2 + "|" + empty + "A2<|eos|>|");
}

TEST(Template, train_on_prompt_is_refused_without_end_tokens) {
  const Template glm("glm4", Tokenizer::bytes());
  expect_contains(error_of([&] { encode_conversation(two_turns(), glm, {.train_on_prompt = true}); }),
                  "train_on_prompt");
}

TEST(ToolFormat, bad_tools_are_reported) {
  expect_contains(error_of([] { tools_text("qwen", ToolFormat::kQwen, "{broken"); }), "tools: not valid JSON");
  expect_contains(error_of([] { tools_text("qwen", ToolFormat::kQwen, "3"); }), "must be a list of tools");
  expect_contains(error_of([] { tools_text("llama3", ToolFormat::kNone, "[{}]"); }), "template llama3");
  EXPECT_EQ(tools_text("llama3", ToolFormat::kNone, "[]"), "");
  expect_contains(error_of([] { function_calls_text("qwen", ToolFormat::kQwen, "{}", "<think>", "</think>"); }),
                  "\"name\" and \"arguments\"");
}

TEST(ToolFormat, thoughts_and_finished_calls_stay) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  const auto text = [](const std::string& content) {
    return function_calls_text("qwen", ToolFormat::kQwen, content, "<think>", "</think>");
  };
  EXPECT_EQ(text(R"({"name":"f","arguments":{}})"), call);
  EXPECT_EQ(text(R"(<think>hm</think>{"name":"f","arguments":{}})"), "<think>hm</think>" + call);
  EXPECT_EQ(text(R"([{"name":"f","arguments":{}},{"name":"f","arguments":{}}])"), call + "\n" + call);
  EXPECT_EQ(text(R"(I look. <tool_call>{"name":"f","arguments":{}}</tool_call>)"), "I look. " + call);
}

TEST(PythonJson, numbers_and_texts_as_python_writes_them) {
  const auto text = [](const char* source) { return python_json(io::parse_json(source, "t")); };
  EXPECT_EQ(text(R"({"a":[1,2.0,1e16,1e-5,0.1],"b":"é\n\"","c":null,"d":{},"e":[]})"),
            R"({"a": [1, 2.0, 1e+16, 1e-05, 0.1], "b": "é\n\"", "c": null, "d": {}, "e": []})");
}

}  // namespace
}  // namespace megalith::data

// The choice of the template, and fine-tuning data through the chat templates of real tokenizers.
#include "megalith/data/sft/chat_encoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/data/sft/encode.h"
#include "megalith/io/json_text.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using io::Json;
using testing::expect_contains;
using testing::TemporaryFolder;
using tokenizer::ChatTemplate;
using tokenizer::Tokenizer;
using Ids = std::vector<int32_t>;

constexpr const char* kChatml =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

TemplateChoice named(const char* name) { return {.name = name, .options = {}}; }

TEST(MakeTurnEncoder, a_name_wins_over_the_tokenizers_own_template) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"chat_template.jinja", kChatml}});
  const auto encoder = make_turn_encoder(named("vicuna"), Tokenizer::bytes(), folder.path());
  expect_contains(encoder->description(), "vicuna");
  for (const TemplateChoice& choice : {TemplateChoice(), named("tokenizer")})
    expect_contains(make_turn_encoder(choice, Tokenizer::bytes(), folder.path())->description(), "own template");
}

TEST(MakeTurnEncoder, says_what_is_missing) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"tokenizer_config.json", R"({"eos_token": "<|eos|>"})"}});
  const auto error = [&](const TemplateChoice& choice, const std::filesystem::path& from) {
    return testing::error_of<ConfigError>([&] { make_turn_encoder(choice, Tokenizer::bytes(), from); });
  };
  EXPECT_EQ(make_turn_encoder({}, Tokenizer::bytes(), folder.path()), nullptr);
  EXPECT_EQ(make_turn_encoder({}, Tokenizer::bytes(), {}), nullptr);
  expect_contains(error(named("tokenizer"), folder.path()), folder.path().string());
  expect_contains(error(named("tokenizer"), {}), "not read from a folder");
  expect_contains(error(named("qwen33"), folder.path()), "did you mean qwen3");
  expect_contains(error(named("llama3"), folder.path()), "<|eot_id|>");
  folder.write("chat_template.jinja", "{% for m in messages %}");
  expect_contains(testing::error_of<DataError>([&] { make_turn_encoder({}, Tokenizer::bytes(), folder.path()); }),
                  "chat_template.jinja");
}

// A tokenizer that needs no files, and templates that a test writes.
std::string row_text(const TemplateOptions& options, const std::string& source, const Conversation& conversation) {
  const TemporaryFolder folder(TemporaryFolder::Files{{"chat_template.jinja", source}});
  const auto encoder = make_turn_encoder({.name = {}, .options = options}, Tokenizer::bytes(), folder.path());
  return Tokenizer::bytes().decode(encode_conversation(conversation, *encoder, {}).ids);
}

Conversation question(const std::string& answer) {
  return {.prompt = {{Role::kUser, "Q"}}, .responses = {{Role::kAssistant, answer}}, .system = {}, .tools = {}};
}

TEST(MakeTurnEncoder, options_reach_the_template) {
  TemplateOptions options;
  EXPECT_EQ(row_text(options, kChatml, question("A")), "<user>Q</s><assistant>A</s>");
  options.default_system = "S";
  EXPECT_EQ(row_text(options, kChatml, question("A")), "<system>S</s><user>Q</s><assistant>A</s>");
  Conversation with_system = question("A");
  with_system.system = "T";
  EXPECT_EQ(row_text(options, kChatml, with_system), "<system>T</s><user>Q</s><assistant>A</s>");

  options.default_system.reset();
  const std::string shows = "{{ enable_thinking }} {{ preserve_thinking }} {{ strftime_now('%A %d %b %Y, %j') }} ";
  EXPECT_EQ(row_text(options, shows + kChatml, question("<think>\nt\n</think>\n\nA")),
            "True  Friday 26 Jul 2024, 208 <user>Q</s><assistant><think>\nt\n</think>\n\nA</s>");
  options.thinking = Thinking::kUnset;
  options.preserve_thinking = true;
  EXPECT_EQ(row_text(options, shows + kChatml, question("A")),
            " True Friday 26 Jul 2024, 208 <user>Q</s><assistant>A</s>");
  options.thinking = Thinking::kOff;
  EXPECT_EQ(row_text(options, kChatml, question("<think>\nt\n</think>\n\nA")), "<user>Q</s><assistant>A</s>");
}

TEST(MakeTurnEncoder, tools_come_as_openai_writes_them) {
  Conversation conversation{.prompt = {{Role::kUser, "Q"},
                                       {Role::kFunction, R"(<think>
t
</think>

[{"name": "f", "arguments": {"x": 1}}])"},
                                       {Role::kObservation, "1\n</tool_response>\n<tool_response>\n2"}},
                            .responses = {{Role::kAssistant, "A"}},
                            .system = {},
                            .tools = R"([{"name": "f", "parameters": {}}])"};
  const std::string source =
      "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
      "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %};{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(
      row_text({}, source, conversation),
      "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]<user>Q;<assistant><think>\nt\n"
      "</think>\n\n[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}];"
      "<tool>1;<tool>2;<assistant>A;");
  conversation.tools = "[]";
  expect_contains(row_text({}, source, conversation), "null<user>");
}

#if defined(MEGALITH_PCRE2) && defined(MEGALITH_UTF8PROC)

struct RealCase {
  std::string name;
  Conversation conversation;
  tokenizer::ChatEncoding expected;  // the ids of `megalith tokenize --chat`
};

// A real tokenizer with the golden conversations that training data can hold.
struct RealTokenizer {
  std::filesystem::path folder;
  Tokenizer tokenizer;
  std::vector<RealCase> cases;

  explicit RealTokenizer(const std::string& name)
      : folder(testing::tokenizer_folder(name)), tokenizer(Tokenizer::from_folder(folder)) {
    const auto chat = ChatTemplate::from_folder(folder);
    for (const Json& c : Json::parse(testing::golden_text("hf/chat/messages.json"))) {
      if (c.contains("tools") || !is_plain(c.at("messages"))) continue;
      cases.push_back(
          {c.at("name"), conversation_of(c.at("messages")), chat.apply({c.at("messages"), {}, {}}, tokenizer)});
    }
  }

  static bool is_plain(const Json& messages) {
    bool plain = messages.back().at("role") == "assistant";
    for (const Json& message : messages) plain = plain && message.size() == 2 && message.at("content").is_string();
    return plain;
  }

  static Conversation conversation_of(Json messages) {
    Conversation conversation;
    if (messages.front().at("role") == "system") {
      conversation.system = messages.front().at("content");
      messages.erase(0);
    }
    for (const Json& message : messages)
      conversation.prompt.push_back(
          {message.at("role") == "user" ? Role::kUser : Role::kAssistant, message.at("content").get<std::string>()});
    conversation.responses = {conversation.prompt.back()};
    conversation.prompt.pop_back();
    return conversation;
  }
};

size_t trained_end(const std::vector<uint8_t>& mask) {
  size_t end = mask.size();
  while (end > 0 && mask[end - 1] == 0) --end;
  return end;
}

// The labels: ids where `mask` has 1.
Ids labels_of(const Ids& ids, const std::vector<uint8_t>& mask) {
  Ids labels = ids;
  for (size_t i = 0; i < labels.size(); ++i)
    if (mask[i] == 0) labels[i] = kIgnoredLabel;
  return labels;
}

void expect_rows_of(const RealTokenizer& real) {
  const auto encoder = make_turn_encoder({}, real.tokenizer, real.folder);
  ASSERT_GE(real.cases.size(), 8U);
  for (const RealCase& c : real.cases) {
    SCOPED_TRACE(real.folder.filename().string() + ", " + c.name);
    const size_t end = trained_end(c.expected.assistant_mask);
    const Ids ids(c.expected.ids.begin(), c.expected.ids.begin() + static_cast<std::ptrdiff_t>(end));
    std::vector<uint8_t> mask = c.expected.assistant_mask;
    const Sequence row = encode_conversation(c.conversation, *encoder, {});
    EXPECT_EQ(row.ids, ids);
    EXPECT_EQ(row.labels, labels_of(ids, mask));

    const Sequence all = encode_conversation(c.conversation, *encoder, {.train_on_prompt = true});
    EXPECT_EQ(all.ids, ids);
    EXPECT_EQ(all.labels, ids);

    // Only the last answer is left: everything before the last 0.
    size_t last = end;
    while (last > 0 && mask[last - 1] == 1) --last;
    std::fill(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(last), 0);
    const Sequence masked = encode_conversation(c.conversation, *encoder, {.mask_history = true});
    EXPECT_EQ(masked.ids, ids);
    EXPECT_EQ(masked.labels, labels_of(ids, mask));
  }
}

TEST(OwnTemplate, rows_are_those_of_the_command_line) {
  for (const char* name : {"qwen2_5", "qwen3", "deepseek_v3"}) expect_rows_of(RealTokenizer(name));
}

TEST(OwnTemplate, rows_are_cut_as_with_templates_by_name) {
  const RealTokenizer real("qwen2_5");
  const auto encoder = make_turn_encoder({}, real.tokenizer, real.folder);
  for (const RealCase& c : real.cases)
    for (const int64_t cutoff : {1, 7, 20, 60}) {
      bool cut = false;
      const Sequence whole = encode_conversation(c.conversation, *encoder, {});
      const Sequence row = encode_conversation(c.conversation, *encoder, {.cutoff = cutoff}, &cut);
      EXPECT_EQ(cut, std::ssize(whole.ids) > cutoff) << c.name;
      EXPECT_EQ(std::ssize(row.ids), std::min(cutoff, std::ssize(whole.ids))) << c.name;
      EXPECT_EQ(row.ids.size(), row.labels.size());
    }
}

// Both write the same text, so ids and labels agree.
TEST(OwnTemplate, agrees_with_the_template_by_name) {
  const RealTokenizer real("qwen2_5");
  const auto own = make_turn_encoder({}, real.tokenizer, real.folder);
  const auto by_name = make_turn_encoder(named("qwen"), real.tokenizer, real.folder);
  for (const RealCase& c : real.cases) {
    if (c.name == "whitespace") continue;  // an answer that begins with a line end: one token with that before it
    EXPECT_EQ(encode_conversation(c.conversation, *own, {}), encode_conversation(c.conversation, *by_name, {}))
        << c.name;
  }
  EXPECT_EQ(own->tokens().pad, by_name->tokens().pad);
}

// Without thoughts the empty one belongs to the prompt, and answers are found where users said the same before.
TEST(OwnTemplate, thoughts_may_be_left_out) {
  const RealTokenizer real("qwen3");
  const TemplateChoice without{.name = {}, .options = {.thinking = Thinking::kOff}};
  const auto encoder = make_turn_encoder(without, real.tokenizer, real.folder);
  const Conversation conversation{.prompt = {{Role::kUser, "Say Hello"},
                                             {Role::kAssistant, "<think>\nhm\n</think>\n\nHello"},
                                             {Role::kUser, "Bye"}},
                                  .responses = {{Role::kAssistant, "Bye"}},
                                  .system = {},
                                  .tools = {}};
  const auto turns = encoder->turns(conversation, false);
  ASSERT_EQ(turns.size(), 2U);
  const auto text = [&](const Ids& ids) { return real.tokenizer.decode(ids); };
  EXPECT_EQ(text(turns[0].source), "<|im_start|>user\nSay Hello<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text(turns[0].target), "Hello<|im_end|>\n");
  EXPECT_EQ(text(turns[1].source), "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(text(turns[1].target), "Bye<|im_end|>\n");
}

TEST(OwnTemplate, pairs_share_their_prompt) {
  const RealTokenizer real("deepseek_v3");
  const auto encoder = make_turn_encoder({}, real.tokenizer, real.folder);
  Conversation conversation = question("good");
  conversation.responses.push_back({Role::kAssistant, "bad"});
  const Sample sample = encode_preference(conversation, *encoder, {});
  EXPECT_EQ(real.tokenizer.decode(sample.row.ids),
            "<｜begin▁of▁sentence｜><｜User｜>Q<｜Assistant｜>good<｜end▁of▁sentence｜>");
  EXPECT_EQ(real.tokenizer.decode(sample.rejected->ids),
            "<｜begin▁of▁sentence｜><｜User｜>Q<｜Assistant｜>bad<｜end▁of▁sentence｜>");
}

#endif

}  // namespace
}  // namespace megalith::data

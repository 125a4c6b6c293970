// The template engine against jinja2 as transformers sets it up (tests/data/tokenizer/make_templates.py), its bounds,
// and what it says about templates that are wrong.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/jinja/template.h"
#include "megalith/tokenizer/text/python_text.h"
#include "tests/support/expect.h"

namespace megalith::tokenizer {
namespace {

// Tests run in the root of the tree.
std::filesystem::path data_folder() { return "tests/data/tokenizer"; }

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Json& expected_renderings() {
  static const Json data = Json::parse(file_text(data_folder() / "templates.json"));
  return data;
}

// 2024-07-26 13:05:09, a Friday.
std::tm clock_of_data() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 13;
  now.tm_min = 5;
  now.tm_sec = 9;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

std::string render(const std::string& source, const Json& variables = Json::object(),
                   const jinja::Limits& limits = {}) {
  return jinja::Template(source, "t.jinja").render(variables, {.limits = limits, .now = clock_of_data()}).text;
}

std::string error_of(const std::string& source, const Json& variables = Json::object(),
                     const jinja::Limits& limits = {}) {
  try {
    return "no error, but: " + render(source, variables, limits);
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST(Jinja, EngineDoesWhatJinja2Does) {
  ASSERT_GT(expected_renderings().at("engine").size(), 200U);
  for (const Json& c : expected_renderings().at("engine")) {
    const std::string source = c.at("template");
    SCOPED_TRACE(source);
    if (c.contains("error")) {
      EXPECT_THROW(render(source, expected_renderings().at("context")), DataError);
    } else {
      EXPECT_NO_THROW(EXPECT_EQ(render(source, expected_renderings().at("context")), c.at("text").get<std::string>()));
    }
  }
}

// Characters to bytes.
size_t byte_offset(const std::string& text, size_t character) { return character_offsets(text).at(character); }

TEST(Jinja, TemplatesOfRealModelsRenderAsInTransformers) {
  for (const Json& c : expected_renderings().at("chats")) {
    const std::string name = c.at("template"), chat_name = c.at("chat");
    SCOPED_TRACE(name + ", " + chat_name);
    Json chat;
    for (const Json& candidate : expected_renderings().at("conversations"))
      if (candidate.at("name") == chat_name) chat = candidate;
    const std::string source = file_text(data_folder() / "chat_templates" / (name + ".jinja"));
    const ChatTemplate engine(source, name,
                              expected_renderings().at("special_tokens").get<std::map<std::string, std::string>>());
    ChatOptions options{.kwargs = chat.value("kwargs", Json::object()), .now = clock_of_data()};
    options.add_generation_prompt = options.kwargs.value("add_generation_prompt", false);
    options.kwargs.erase("add_generation_prompt");
    const Conversation conversation{chat.at("messages"), chat.value("tools", Json()), chat.value("documents", Json())};
    if (c.contains("error")) {
      try {
        const std::string text = engine.render(conversation, options);
        ADD_FAILURE() << "no error, but: " << text;
      } catch (const DataError& error) {
        testing::expect_contains(error.what(), c.at("error"));
        testing::expect_contains(error.what(), name + ":");
      }
      continue;
    }
    const std::string text = c.at("text");
    EXPECT_NO_THROW(EXPECT_EQ(engine.render(conversation, options), text));
  }
}

TEST(Jinja, GenerationBlocksAreWhereTransformersSeesThem) {
  const std::string source = file_text(data_folder() / "chat_templates/qwen3_style.jinja");
  const jinja::Template engine(source, "qwen3_style");
  EXPECT_TRUE(engine.marks_generation());
  size_t compared = 0;
  for (const Json& c : expected_renderings().at("chats")) {
    if (c.at("template") != "qwen3_style" || c.contains("error")) continue;
    for (const Json& chat : expected_renderings().at("conversations")) {
      if (chat.at("name") != c.at("chat")) continue;
      SCOPED_TRACE(chat.at("name").get<std::string>());
      Json variables = chat.value("kwargs", Json::object());
      variables["messages"] = chat.at("messages");
      variables["tools"] = chat.value("tools", Json());
      const jinja::Rendered rendered = engine.render(variables);
      const Json& blocks = c.at("generation");
      ASSERT_EQ(rendered.generation.size(), blocks.size());
      for (size_t i = 0; i < blocks.size(); ++i) {
        EXPECT_EQ(rendered.generation[i].first, byte_offset(rendered.text, blocks[i][0]));
        EXPECT_EQ(rendered.generation[i].second, byte_offset(rendered.text, blocks[i][1]));
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 5U);
}

TEST(Jinja, ErrorsNameTemplateLineAndWhatWasExpected) {
  const auto expect_error = [](const std::string& source, const std::string& place, const std::string& what) {
    const std::string error = error_of(source);
    testing::expect_contains(error, place);
    testing::expect_contains(error, what);
  };
  expect_error("a\n{{ 1 + }}", "t.jinja:2:", "expected an expression, got end of print statement");
  expect_error("{% if x %}\n\nabc", "t.jinja:", "{% elif %} or {% else %} or {% endif %} is missing");
  expect_error("\n\n{% fro x in y %}", "t.jinja:3:", "unknown tag 'fro'; did you mean 'for'?");
  expect_error("{% if x %}{% endfor %}", "t.jinja:1:", "the open block ends with elif or else or endif");
  expect_error("{% endif %}", "t.jinja:1:", "no block is open here");
  expect_error("\n{# never", "t.jinja:2:", "\"#}\" is missing");
  expect_error("{{ 'abc }}", "t.jinja:1:", "string starts here and does not end");
  expect_error("{% include 'x' %}", "t.jinja:1:", "'include' is not supported in chat templates");
  expect_error("{{ '\\ud800' }}", "t.jinja:1:", "not a Unicode character");
  expect_error("x\n{{ messages[0].content }}", "t.jinja:2:", "'messages' is undefined");
  expect_error("{% set a = {} %}\n{{ a.b.c }}", "t.jinja:2:", "'dict object' has no attribute 'b'");
  expect_error("{{ 'a' + 1 }}", "t.jinja:1:", "can only concatenate str (not \"int\") to str");
  expect_error("\n{{ 'a'|nothing }}", "t.jinja:2:", "no filter named 'nothing'");
  expect_error("{{ 'a'|replace('b') }}", "t.jinja:1:", "replace() needs the argument 'new'");
  expect_error("{{ 'a'|join(sep='b') }}", "t.jinja:1:", "unexpected keyword argument 'sep'; it knows: d, attribute");
  expect_error("{{ [1].append(2) }}", "t.jinja:1:", "access to attribute 'append' of 'list' object is unsafe");
  expect_error("\n{{ raise_exception('No system role!') }}", "t.jinja:2:", "No system role!");
  expect_error("\xFF", "t.jinja", "not valid UTF-8");
}

TEST(Jinja, ATemplateCannotRunForeverOrEatMemory) {
  jinja::Limits limits;
  limits.steps = 1'000'000;
  limits.bytes = size_t{1} << 26;
  const auto expect_stopped = [&](const std::string& source, const std::string& what) {
    testing::expect_contains(error_of(source, Json::object(), limits), what);
  };
  expect_stopped("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels deep");
  expect_stopped("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "an endless loop");
  expect_stopped("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                 "keeps doubling");
  expect_stopped("{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 "keeps doubling");
  expect_stopped("{{ 'x' * 100000000000 }}", "keeps doubling");
  expect_stopped("{{ [0] * 100000000000 }}", "keeps doubling");
  expect_stopped("{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}",
                 "levels deep");
  expect_stopped("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "levels deep");
  expect_stopped("{{ 'a'.ljust(100000000000) }}", "keeps doubling");
  expect_stopped("{{ '%100000d' % 1 }}", "more than 10000");
  expect_stopped("{{ 9223372036854775807 + 1 }}", "does not fit into 64 bits");
  expect_stopped(std::string(5000, '(') + "1" + std::string(5000, ')'), "no error, but");  // text outside of a tag
  expect_stopped("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", "levels deep");
  std::string chain = "{{ x";
  for (int i = 0; i < 100'000; ++i) chain += ".a";
  expect_stopped(chain + " }}", "levels deep");
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if x %}";
  expect_stopped(blocks, "levels deep");
  jinja::Limits small;
  small.output_bytes = 10;
  testing::expect_contains(error_of("{% for i in range(9) %}abc{% endfor %}", Json::object(), small),
                           "longer than 10 bytes");
}

TEST(Jinja, AChainOfNamespacesIsFreed) {
  EXPECT_EQ(render("{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% set ns.p = namespace(p=ns.p) %}{% "
                   "endfor %}ok"),
            "ok");
}

TEST(Jinja, InputIsChecked) {
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  testing::expect_contains(error_of("{{ x }}", {{"x", deep}}), "levels deep");
  testing::expect_contains(error_of("{{ x }}", {{"x", {{"y", 18446744073709551615U}}}}), "x.y is 18446744073709551615");
  testing::expect_contains(error_of("{{ x }}", {{"x", "\xFF"}}), "x: byte 0");
}

}  // namespace
}  // namespace megalith::tokenizer

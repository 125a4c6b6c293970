#include <nlohmann/json.hpp>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/tokenizer/jinja/template.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::fuzz {

namespace {

// Variables that templates read: roles, contents of several kinds, tool calls, numbers.
const char* const kVariables = R"({
  "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Größe? \n"},
               {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5, "b": [true, null]}}}]},
               {"role": "tool", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": "<think>\ny\n</think>\n\n42"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}],
  "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": -7})";

}  // namespace

void chat_template(std::string_view input) {
  constexpr size_t kMaxBytes = size_t{1} << 14;  // more is time, not news
  if (input.size() > kMaxBytes) return;
  tokenizer::jinja::RenderOptions options;
  options.limits = {.steps = 20'000, .bytes = size_t{1} << 21, .output_bytes = size_t{1} << 16};
  options.now.emplace();
  try {
    const tokenizer::jinja::Template engine(input, "template");
    const auto rendered = engine.render(nlohmann::ordered_json::parse(kVariables), options);
    check(!tokenizer::first_invalid_utf8(rendered.text), "rendered text is not valid UTF-8");
    check(rendered.text.size() <= options.limits.output_bytes, "the text is longer than its limit");
    for (const auto& [begin, end] : rendered.generation) check(begin <= end, "a block ends before it begins");
  } catch (const DataError&) {  // the answer to a template that is wrong or refuses its input
  }
}

}  // namespace megalith::fuzz

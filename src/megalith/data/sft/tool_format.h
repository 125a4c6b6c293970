// Renders tools and tool calls as conversation text. `template_name` appears only in error messages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "megalith/data/sft/template_spec.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

// Separates the results of several calls that are joined into one message, as in LLaMA-Factory.
constexpr std::string_view kResultSeparator = "\n</tool_response>\n<tool_response>\n";

// Parses `tools` (JSON text: a list of tools) and returns it in OpenAI's format: each is {"type": "function",
// "function": …}. Returns an empty list for no tools. Throws a DataError for any other text.
io::Json parse_tools(const std::string& tools);

// The content of a function message. "<think>…</think>{"name": …, "arguments": …}" -> the thought, and a list of one
// call.
struct FunctionCalls {
  std::string around;  // text besides the calls: a thought
  io::Json calls;      // a list of objects with name and arguments
};
// Parses `content`: JSON, an object with name and arguments or a list of such objects, alone or after a thought. If the
// content already holds calls in qwen's format, returns the first of them. Throws a DataError for any other content.
FunctionCalls parse_function_calls(const std::string& content, std::string_view thought_open,
                                   std::string_view thought_close);

// Returns the part of the system text that describes `tools` (JSON text: a list of tools). Empty for no tools and for
// "[]". Throws a DataError like parse_tools, and a ConfigError for a template without a format for tools.
std::string tools_text(std::string_view template_name, ToolFormat format, const std::string& tools);

// Returns what an assistant writes to call functions, given the `content` of parse_function_calls: the text besides the
// calls, then the calls.
std::string function_calls_text(std::string_view template_name, ToolFormat format, const std::string& content,
                                std::string_view thought_open, std::string_view thought_close);

// Returns the text without its parts from `open` to the next `close`, inclusive.
std::string without_marked_parts(const std::string& text, std::string_view open, std::string_view close);
// Does the same for thoughts, and also removes the newlines that are then at the front.
std::string without_thoughts(const std::string& text, std::string_view open, std::string_view close);

}  // namespace megalith::data

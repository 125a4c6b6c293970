// Tools and calls of them as text inside of conversations. `template_name` stands in messages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "megalith/data/sft/template_spec.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

// Stands between the results of several calls where they are one message (as the reference joins them).
constexpr std::string_view kResultSeparator = "\n</tool_response>\n<tool_response>\n";

// `tools` (JSON text: a list of tools) as OpenAI writes it: each is {"type": "function", "function": …}. An empty list
// for no tools. Throws DataError for text that is no such JSON.
io::Json parse_tools(const std::string& tools);

// What a function message says.
struct FunctionCalls {
  std::string around;  // text beside the calls: a thought
  io::Json calls;      // a list of objects with name and arguments
};
// `content` is JSON, an object with name and arguments or a list of such, behind a thought or alone. Content that holds
// finished calls of qwen's format already gives the first of them. Throws DataError for content that is none of it.
FunctionCalls parse_function_calls(const std::string& content, std::string_view thought_open,
                                   std::string_view thought_close);

// The part of the system text that describes `tools` (JSON text: a list of tools). Empty for no tools and for "[]".
// Throws DataError for text that is no such JSON, ConfigError for a template that has no format for tools.
std::string tools_text(std::string_view template_name, ToolFormat format, const std::string& tools);

// What an assistant writes to call functions, from the `content` of parse_function_calls: what stands around them, then
// the calls.
std::string function_calls_text(std::string_view template_name, ToolFormat format, const std::string& content,
                                std::string_view thought_open, std::string_view thought_close);

// The text without its parts from `open` to the next `close`, both included.
std::string without_marked_parts(const std::string& text, std::string_view open, std::string_view close);
// The same for thoughts: empty lines that are then in front go with them.
std::string without_thoughts(const std::string& text, std::string_view open, std::string_view close);

}  // namespace megalith::data

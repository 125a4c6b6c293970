// Tools and calls of them as text inside of conversations. `template_name` stands in messages.
#pragma once

#include <string>
#include <string_view>

#include "megalith/data/sft/template_spec.h"

namespace megalith::data {

// The part of the system text that describes `tools` (JSON text: a list of tools). Empty for no tools and for "[]".
// Throws DataError for text that is no such JSON, ConfigError for a template that has no format for tools.
std::string tools_text(std::string_view template_name, ToolFormat format, const std::string& tools);

// What an assistant writes to call functions: `content` is JSON, an object with name and arguments or a list of such,
// behind a thought or alone. The thought stays in front. Content that holds finished calls already keeps what stands
// around the first.
std::string function_calls_text(std::string_view template_name, ToolFormat format, const std::string& content,
                                std::string_view thought_open, std::string_view thought_close);

// The text without its parts from `open` to the next `close`, both included.
std::string without_marked_parts(const std::string& text, std::string_view open, std::string_view close);

}  // namespace megalith::data

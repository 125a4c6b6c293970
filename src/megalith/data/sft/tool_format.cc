// Qwen's format for tools, which is the only one so far. The texts are prompts that models were trained with: they must
// not be edited, and the JSON in them must look as Python prints it (python_json.h).
#include "megalith/data/sft/tool_format.h"

#include <algorithm>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/data/sft/python_json.h"

namespace megalith::data {
namespace {

using io::Json;

constexpr std::string_view kQwenToolsBefore =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kQwenToolsAfter =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";
constexpr std::string_view kQwenCallOpen = "<tool_call>";
constexpr std::string_view kQwenCallClose = "</tool_call>";

// Writing tools in a format that the model has never seen would train it on noise.
void check_format(std::string_view template_name, ToolFormat format) {
  check<ConfigError>(format == ToolFormat::kQwen,
                     "the data has tools or function calls, for which template {} has no format. Use a qwen "
                     "template, or take the tools out of the data",
                     template_name);
}

// Parses JSON; an error shows the text, which is only a part of the record.
Json parsed(const std::string& text, const char* what) {
  try {
    return io::parse_json(text, what);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{} (the text is {})", error.what(), io::in_quotes(text)));
  }
}

// A part of a text between two marks.
struct Part {
  size_t begin = 0, end = 0;              // including the marks
  size_t inner_begin = 0, inner_end = 0;  // between them
};

// Finds the first part from `from` on that has both marks.
std::optional<Part> find_part(const std::string& text, std::string_view open, std::string_view close, size_t from) {
  const size_t begin = text.find(open, from);
  if (begin == std::string::npos) return std::nullopt;
  const size_t inner_end = text.find(close, begin + open.size());
  if (inner_end == std::string::npos) return std::nullopt;
  return Part{begin, inner_end + close.size(), begin + open.size(), inner_end};
}

// Returns the calls in a text as a list of objects with only "name" and "arguments", in this order.
Json calls_of(const std::string& text) {
  const Json value = parsed(text, "function message");
  Json calls = Json::array();
  for (const Json& call : value.is_array() ? value : Json::array({value})) {
    check<DataError>(call.is_object() && call.contains("name") && call.contains("arguments"),
                     "function message: {} must be an object with \"name\" and \"arguments\"", io::json_in_words(call));
    calls.push_back({{"name", call.at("name")}, {"arguments", call.at("arguments")}});
  }
  return calls;
}

// Removes all occurrences of the part's text, as LLaMA-Factory does.
std::string without_text(std::string text, const std::string& part) {
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

}  // namespace

Json parse_tools(const std::string& tools) {
  if (tools.empty()) return Json::array();
  const Json list = parsed(tools, "tools");
  if (list.is_structured() && list.empty()) return Json::array();  // also for "{}"
  check<DataError>(list.is_array(), "tools: {} must be a list of tools", io::json_in_words(list));
  Json result = Json::array();
  for (const Json& tool : list) {
    check<DataError>(tool.is_object(), "tools: {} must be an object that describes a tool", io::json_in_words(tool));
    const bool wrapped = tool.contains("type") && tool.at("type") == "function";
    result.push_back(wrapped ? tool : Json{{"type", "function"}, {"function", tool}});
  }
  return result;
}

// Three forms: calls already written in qwen's format, JSON after a thought, JSON alone.
FunctionCalls parse_function_calls(const std::string& content, std::string_view thought_open,
                                   std::string_view thought_close) {
  if (const auto call = find_part(content, kQwenCallOpen, kQwenCallClose, 0))
    return {without_text(content, content.substr(call->begin, call->end - call->begin)),
            calls_of(content.substr(call->inner_begin, call->inner_end - call->inner_begin))};
  const auto thought = find_part(content, thought_open, thought_close, 0);
  if (!thought) return {{}, calls_of(content)};
  const std::string thought_text = content.substr(thought->begin, thought->end - thought->begin);
  return {thought_text, calls_of(without_text(content, thought_text))};
}

// One tool per line, between the two texts above.
std::string tools_text(std::string_view template_name, ToolFormat format, const std::string& tools) {
  const Json list = parse_tools(tools);
  if (list.empty()) return {};
  check_format(template_name, format);
  std::string lines;
  for (const Json& tool : list) lines += '\n' + python_json(tool);
  return std::string(kQwenToolsBefore) + lines + std::string(kQwenToolsAfter);
}

// Calls are written again, even if they already had qwen's format, so that all look alike.
std::string function_calls_text(std::string_view template_name, ToolFormat format, const std::string& content,
                                std::string_view thought_open, std::string_view thought_close) {
  check_format(template_name, format);
  const auto [around, calls] = parse_function_calls(content, thought_open, thought_close);
  std::string result;
  for (const Json& call : calls) {
    if (!result.empty()) result += '\n';
    result += fmt::format("{}\n{}\n{}", kQwenCallOpen, python_json(call), kQwenCallClose);
  }
  return around + result;
}

// "a<think>b</think>c" -> "ac"; an open mark without a close mark stays.
std::string without_marked_parts(const std::string& text, std::string_view open, std::string_view close) {
  std::string rest;
  size_t from = 0;
  while (const auto part = find_part(text, open, close, from)) {
    rest += text.substr(from, part->begin - from);
    from = part->end;
  }
  return rest + text.substr(from);
}

std::string without_thoughts(const std::string& text, std::string_view open, std::string_view close) {
  std::string rest = without_marked_parts(text, open, close);
  rest.erase(0, std::min(rest.find_first_not_of('\n'), rest.size()));
  return rest;
}

}  // namespace megalith::data

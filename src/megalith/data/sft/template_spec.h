// TemplateSpec: named chat templates as data. The rows are those of LLaMA-Factory; template.h turns them into ids.
//
// Example, the user's text of qwen:
//
//   <|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::data {

// How tools and tool calls are written: kNone has no format for them. A conversation with tools needs a template that
// has one.
enum class ToolFormat { kNone, kQwen };

// Texts with the markers {{content}}, {{bos}} and {{eos}}. Text between two token markers is tokenized as one piece.
// Every blank and line break is part of the format that the model was trained with.
struct TemplateSpec {
  std::string_view name;
  std::string_view prefix;  // before the first turn
  // One text per role; the user's ends with the header of the answer that follows.
  std::string_view system;
  std::string_view user;
  std::string_view assistant;
  std::string_view observation;
  std::string_view default_system;      // for records without a system text
  std::string_view eos;                 // replaces the tokenizer's end token, unless empty
  std::vector<std::string_view> stops;  // additional tokens that end an answer
  std::string_view document_end;        // ends a pre-training text; if empty, the end token does
  // How turns are put together.
  bool system_in_user = false;  // the system text is part of the first user content
  bool efficient_eos = false;   // answers have no end token; only the conversation ends with one
  bool reasoning = false;       // answers have thoughts
  std::string_view thought_open = "<think>\n";
  std::string_view thought_close = "\n</think>\n\n";
  ToolFormat tools = ToolFormat::kNone;
};

// Returns all templates, sorted by name.
std::span<const TemplateSpec> template_specs();
// Returns the template of that name. Throws a ConfigError that lists the nearest and all known names.
const TemplateSpec& find_template(std::string_view name);

}  // namespace megalith::data

// Chat templates by name, as data. The rows are those of LLaMA-Factory; template.h turns them into ids.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::data {

// How tools and calls of them are written.
enum class ToolFormat { kNone, kQwen };

// Texts with the markers {{content}}, {{bos}} and {{eos}}. Text between two token markers is tokenized as one piece.
struct TemplateSpec {
  std::string_view name;
  std::string_view prefix;
  std::string_view system;
  std::string_view user;
  std::string_view assistant;
  std::string_view observation;
  std::string_view default_system;      // when a record has none
  std::string_view eos;                 // replaces the tokenizer's end token; empty: its own
  std::vector<std::string_view> stops;  // further tokens that end an answer
  std::string_view document_end;        // end of a pre-training text; empty: the end token
  bool system_in_user = false;          // the system text is a part of the first user content
  bool efficient_eos = false;           // answers carry no end token; one stands at the end of the conversation
  bool reasoning = false;               // answers have thoughts
  std::string_view thought_open = "<think>\n";
  std::string_view thought_close = "\n</think>\n\n";
  ToolFormat tools = ToolFormat::kNone;
};

std::span<const TemplateSpec> template_specs();
// Throws ConfigError that names the nearest and all known names.
const TemplateSpec& find_template(std::string_view name);

}  // namespace megalith::data

// The TurnEncoder of a run: a template by name, or the chat template in the tokenizer's folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/data/sft/template.h"

namespace megalith::data {

// The name that asks for the tokenizer's own chat template.
constexpr std::string_view kOwnTemplate = "tokenizer";

// A chat template, and what it is told.
struct TemplateChoice {
  // Of the table, or kOwnTemplate; absent: the tokenizer's own where it has one, and none otherwise.
  std::optional<std::string> name;
  TemplateOptions options;

  bool is_own() const { return !name || *name == kOwnTemplate; }
};

// `folder` is where the tokenizer was read from; empty when from none.
//
// The tokenizer's own template gives the ids of ChatTemplate::apply, up to the last one that the assistant writes. A
// conversation without system text begins with default_system. enable_thinking (unless unset) and preserve_thinking
// (when true) are variables of the template; with Thinking::kOff the thoughts (<think>…</think>) of answers are removed
// first. A template that prints the date prints 26 July 2024, which Llama's templates fall back to: samples
// must not change from day to day.
//
// Nothing when no template is named and the folder has none: data without conversations needs none, and
// RecordEncoder::check_dataset refuses the others. Throws ConfigError for a name that is not known, for a tokenizer
// that lacks the template's tokens, and for kOwnTemplate where there is none; DataError, naming file and line, for a
// chat template that does not parse.
std::shared_ptr<const TurnEncoder> make_turn_encoder(const TemplateChoice& choice,
                                                     const tokenizer::Tokenizer& tokenizer,
                                                     const std::filesystem::path& folder);
}  // namespace megalith::data

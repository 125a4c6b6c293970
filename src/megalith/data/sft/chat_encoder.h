// Makes the TurnEncoder of a run: a named template, or the chat template in the tokenizer's folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/data/sft/template.h"

namespace megalith::data {

// The name that selects the tokenizer's own chat template.
constexpr std::string_view kOwnTemplate = "tokenizer";

// A chat template and its options.
struct TemplateChoice {
  // A name of the table (template_spec.h) or kOwnTemplate; std::nullopt: the tokenizer's own if it has one, otherwise
  // none.
  std::optional<std::string> name;
  TemplateOptions options;

  // Whether the tokenizer's own template is meant.
  bool is_own() const { return !name || *name == kOwnTemplate; }
};

// Makes the encoder. `folder` is where the tokenizer was read from; empty if from none.
//
// The tokenizer's own template gives the ids of ChatTemplate::apply, up to the last one that the assistant writes. A
// conversation without system text begins with default_system. enable_thinking (unless unset) and preserve_thinking
// (if true) are variables of the template; with Thinking::kOff the thoughts (<think>…</think>) of answers are removed
// first. A template that prints the date prints 26 July 2024, the fallback of Llama's templates, so that samples do not
// change from day to day.
//
// Returns nullptr if no template is named and the folder has none: data without conversations needs none, and
// RecordEncoder::check_dataset refuses other data. Throws a ConfigError for an unknown name, for a tokenizer that lacks
// the template's tokens, and for kOwnTemplate if there is none; throws a DataError that names file and line for a chat
// template that does not parse.
std::shared_ptr<const TurnEncoder> make_turn_encoder(const TemplateChoice& choice,
                                                     const tokenizer::Tokenizer& tokenizer,
                                                     const std::filesystem::path& folder);
}  // namespace megalith::data

// Template: a named chat template (template_spec.h), applied with a tokenizer.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/data/sft/template_spec.h"
#include "megalith/data/sft/turn_encoder.h"

namespace megalith::data {

// How templates of reasoning models treat the thoughts in answers.
enum class Thinking {
  kOn,     // keep thoughts; an answer without one gets an empty one, which is trained
  kOff,    // remove thoughts; the empty one belongs to the prompt
  kUnset,  // keep thoughts; the empty one belongs to the prompt. A Jinja template does not get enable_thinking
};

// Options of a template, named or the tokenizer's own. Named like the options default_system, enable_thinking and
// preserve_thinking.
struct TemplateOptions {
  // System text of conversations that have none; std::nullopt: the template's own, if any.
  std::optional<std::string> default_system;
  Thinking thinking = Thinking::kOn;
  bool preserve_thinking = false;  // keep thoughts of earlier turns that would otherwise be removed
  // Special tokens in contents ("<|im_end|>" in a question) are tokenized as text; the template's own remain tokens.
  bool split_special_tokens = false;
};

// A row of the table, bound to a tokenizer. Texts are tokenized on their own, turn by turn, so that tokens never merge
// across the border of a turn.
class Template : public TurnEncoder {
 public:
  // Throws a ConfigError for an unknown name, or if the tokenizer lacks a token that the template needs.
  Template(std::string_view name, tokenizer::Tokenizer tokenizer, TemplateOptions options = {});

  std::vector<EncodedTurn> turns(const Conversation& conversation, bool last_turn_only) const override;
  EncodedTurn answer(const Conversation& conversation, size_t response) const override;
  const TemplateTokens& tokens() const override { return tokens_; }
  bool efficient_eos() const override { return spec_.efficient_eos; }
  std::string description() const override;

 private:
  using Ids = std::vector<int32_t>;
  // Appends the ids of a text with markers; `content` takes the place of {{content}}.
  void append(std::string_view format, const std::string& content, Ids& ids) const;
  Ids encode_message(const Message& message, const std::string& system_text) const;
  std::vector<Ids> encode_messages(const std::vector<Message>& messages, const Conversation& conversation) const;
  // Thoughts of reasoning models: whether an answer has none, the answer without them, and the empty one.
  bool without_thought(const std::string& content) const;
  std::string thought_removed(const std::string& content) const;
  void add_empty_thought(EncodedTurn& turn) const;

  const TemplateSpec& spec_;
  tokenizer::Tokenizer tokenizer_;
  TemplateOptions options_;
  std::string default_system_;  // system text of conversations that have none
  TemplateTokens tokens_;
};

// Returns the special tokens of `tokenizer` that `spec` needs. Throws a ConfigError if it lacks one.
TemplateTokens template_tokens(const TemplateSpec& spec, const tokenizer::Tokenizer& tokenizer);

// Returns the tokenizer's own special tokens, for templates that write theirs as text. The end token is 0 if it has
// none.
TemplateTokens own_tokens(const tokenizer::Tokenizer& tokenizer);

// Whether texts begin with bos according to `add_bos_token` in tokenizer_config.json. False for an empty path. Only
// pre-training documents follow it; templates write bos themselves where they want it.
bool adds_bos_token(const std::filesystem::path& tokenizer_folder);

}  // namespace megalith::data

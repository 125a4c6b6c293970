// A chat template by name, applied with a tokenizer.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/data/sft/template_spec.h"
#include "megalith/data/sft/turn_encoder.h"

namespace megalith::data {

// What templates of reasoning models do with the thoughts in answers.
enum class Thinking {
  kOn,     // thoughts stay, and an answer without one gets an empty one, which is trained
  kOff,    // thoughts are removed; the empty one belongs to the prompt
  kUnset,  // thoughts stay; the empty one belongs to the prompt. A template in Jinja is told nothing
};

struct TemplateOptions {
  std::optional<std::string>
      default_system;  // of conversations without system text; absent: the template's own, if any
  Thinking thinking = Thinking::kOn;
  bool preserve_thinking = false;  // keep thoughts of earlier turns where they would be removed
};

class Template : public TurnEncoder {
 public:
  // Throws ConfigError for an unknown name, and when the tokenizer lacks a token that the template needs.
  Template(std::string_view name, tokenizer::Tokenizer tokenizer, TemplateOptions options = {});

  std::vector<EncodedTurn> turns(const Conversation& conversation, bool last_turn_only) const override;
  EncodedTurn answer(const Conversation& conversation, size_t response) const override;
  const TemplateTokens& tokens() const override { return tokens_; }
  bool efficient_eos() const override { return spec_.efficient_eos; }
  std::string description() const override;

 private:
  using Ids = std::vector<int32_t>;
  void append(std::string_view format, const std::string& content, Ids& ids) const;
  Ids encode_message(const Message& message, const std::string& system_text) const;
  std::vector<Ids> encode_messages(const std::vector<Message>& messages, const Conversation& conversation) const;
  bool without_thought(const std::string& content) const;
  std::string thought_removed(const std::string& content) const;
  void add_empty_thought(EncodedTurn& turn) const;

  const TemplateSpec& spec_;
  tokenizer::Tokenizer tokenizer_;
  TemplateOptions options_;
  std::string default_system_;  // of conversations without system text
  TemplateTokens tokens_;
};

// The special tokens that `spec` wants of `tokenizer`. Throws ConfigError when it lacks one.
TemplateTokens template_tokens(const TemplateSpec& spec, const tokenizer::Tokenizer& tokenizer);

// The special tokens of the tokenizer itself, for templates that write theirs as text. 0 stands for an end token that
// it lacks.
TemplateTokens own_tokens(const tokenizer::Tokenizer& tokenizer);

// Whether the tokenizer's configuration says that texts begin with bos: `add_bos_token` of tokenizer_config.json. False
// for an empty path.
bool adds_bos_token(const std::filesystem::path& tokenizer_folder);

}  // namespace megalith::data

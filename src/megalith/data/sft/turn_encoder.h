// TurnEncoder: turns conversations into ids, by a named template (template.h) or by the tokenizer's own chat template
// (rendered_encoder.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/sft/conversation.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

// The special tokens as a template uses them. The tokenizer itself is not changed.
struct TemplateTokens {
  std::optional<int32_t> bos;
  int32_t eos = 0;
  int32_t pad = 0;                   // the end token if the tokenizer has no padding token
  std::vector<int32_t> stops;        // additional ids that end an answer
  std::string document_end;          // text that ends a pre-training document
  bool documents_get_bos = false;    // pre-training texts begin with bos (adds_bos_token in template.h)
  bool documents_are_plain = false;  // special tokens in their texts are tokenized as text (split_special_tokens)
  bool operator==(const TemplateTokens&) const = default;
};

// A turn: what is given (source) and what is to be answered (target), each tokenized on its own. Only targets are
// trained, unless train_on_prompt asks for more.
struct EncodedTurn {
  std::vector<int32_t> source;
  std::vector<int32_t> target;
  bool operator==(const EncodedTurn&) const = default;
};

// Immutable and thread-safe. The ids of all turns, one after the other, are the ids of the conversation.
class TurnEncoder {
 public:
  virtual ~TurnEncoder() = default;

  // Returns all turns of a conversation, with responses[0] as the last answer. `last_turn_only` says that only the last
  // turn is trained (mask_history). Throws a DataError for content that cannot be rendered (tools that are not JSON).
  virtual std::vector<EncodedTurn> turns(const Conversation& conversation, bool last_turn_only) const = 0;
  // Returns the prompt with everything before it as one source, and response number `response` as target.
  virtual EncodedTurn answer(const Conversation& conversation, size_t response) const = 0;

  // Returns the special tokens in use.
  virtual const TemplateTokens& tokens() const = 0;
  // Whether answers have no end token of their own, and only the conversation ends with one.
  virtual bool efficient_eos() const = 0;
  // Identifies the encoder and its settings in the key of a cache.
  virtual std::string description() const = 0;
};

}  // namespace megalith::data

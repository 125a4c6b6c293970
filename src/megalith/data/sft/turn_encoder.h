// What turns conversations into ids: a template by name (template.h), or a tokenizer's own chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/sft/conversation.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

// The special tokens as a template wants them. The tokenizer itself stays as it is.
struct TemplateTokens {
  std::optional<int32_t> bos;
  int32_t eos = 0;
  int32_t pad = 0;                 // the end token when the tokenizer has no padding token
  std::vector<int32_t> stops;      // further ids that end an answer
  std::string document_end;        // text that ends a pre-training document
  bool documents_get_bos = false;  // pre-training texts begin with bos (adds_bos_token in template.h)
  bool operator==(const TemplateTokens&) const = default;
};

// A turn: what is given and what is to be answered, each tokenized on its own.
struct EncodedTurn {
  std::vector<int32_t> source;
  std::vector<int32_t> target;
  bool operator==(const EncodedTurn&) const = default;
};

// Immutable: may be used from any number of threads.
class TurnEncoder {
 public:
  virtual ~TurnEncoder() = default;

  // All turns of a conversation, whose response is responses[0]. `last_turn_only` says that only the last turn is
  // trained (mask_history). Throws DataError for content that cannot be written (tools that are no JSON).
  virtual std::vector<EncodedTurn> turns(const Conversation& conversation, bool last_turn_only) const = 0;
  // The prompt with everything before it as one source, and response number `response` as target.
  virtual EncodedTurn answer(const Conversation& conversation, size_t response) const = 0;

  virtual const TemplateTokens& tokens() const = 0;
  // Answers carry no end token of their own; one stands at the end of the conversation.
  virtual bool efficient_eos() const = 0;
  // Stands for the encoder and its settings in the key of a cache.
  virtual std::string description() const = 0;
};

}  // namespace megalith::data

// RenderedTurnEncoder: a TurnEncoder for templates that render a conversation as a whole. chat_encoder.h makes one from
// the tokenizer's own chat template.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/sft/turn_encoder.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

// A whole conversation. Both vectors have the same length.
struct RenderedConversation {
  std::vector<int32_t> ids;
  std::vector<uint8_t> assistant_mask;  // one per id; 1 if the assistant writes it
};

// Renders a conversation. `messages` are in OpenAI's format: role (system, user, assistant, tool), content, tool_calls.
// `tools` is null or a non-empty list of {"type": "function", "function": …}. Must be thread-safe.
using RenderConversation = std::function<RenderedConversation(const io::Json& messages, const io::Json& tools)>;

// Divides a rendered conversation into turns by its mask. Thread-safe if `render` is.
class RenderedTurnEncoder : public TurnEncoder {
 public:
  // `description` identifies the template in the key of a cache.
  RenderedTurnEncoder(RenderConversation render, TemplateTokens tokens, std::string description);

  // A turn is a part that the assistant writes, with everything before it since the previous such part. Tokens after
  // the last such part are dropped: nothing is predicted from them. Throws a DataError if the assistant writes nothing.
  std::vector<EncodedTurn> turns(const Conversation& conversation, bool last_turn_only) const override;
  EncodedTurn answer(const Conversation& conversation, size_t response) const override;
  const TemplateTokens& tokens() const override { return tokens_; }
  bool efficient_eos() const override { return false; }
  std::string description() const override { return description_; }

 private:
  RenderConversation render_;
  TemplateTokens tokens_;
  std::string description_;
};

// Returns a conversation in OpenAI's format, with response number `response` at the end. Tool results joined by
// kResultSeparator become separate messages again. Throws a DataError for a function message that is not JSON.
io::Json openai_messages(const Conversation& conversation, size_t response);

}  // namespace megalith::data

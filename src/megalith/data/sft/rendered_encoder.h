// A TurnEncoder over whole rendered conversations. chat_encoder.h makes one of a tokenizer's own chat template.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/sft/turn_encoder.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

// All of a conversation; as many ids as mask values.
struct RenderedConversation {
  std::vector<int32_t> ids;
  std::vector<uint8_t> assistant_mask;  // 1: the assistant writes it
};

// `messages` are OpenAI's: role (system, user, assistant, tool), content, tool_calls. `tools` is null or a list that is
// not empty, each {"type": "function", "function": …}. May be called from several threads.
using RenderConversation = std::function<RenderedConversation(const io::Json& messages, const io::Json& tools)>;

class RenderedTurnEncoder : public TurnEncoder {
 public:
  // `description` stands for the template in the key of a cache.
  RenderedTurnEncoder(RenderConversation render, TemplateTokens tokens, std::string description);

  // A turn is what stands before a part of the assistant's, and that part. What follows the last part is left out:
  // nothing is predicted from it. Throws DataError when nothing is the assistant's.
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

// The messages of a conversation with response number `response` at the end, as OpenAI writes them: results that
// kResultSeparator joins are messages of their own again. Throws DataError for a function message that is no JSON.
io::Json openai_messages(const Conversation& conversation, size_t response);

}  // namespace megalith::data

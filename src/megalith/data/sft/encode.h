// Conversations to token sequences with labels, cut to a number of tokens.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "megalith/data/sample.h"
#include "megalith/data/sft/turn_encoder.h"

namespace megalith::data {

struct EncodeSettings {
  // Tokens of a sample before the collator shifts it: one more than cutoff_len of the command line, since the last
  // token is a label only (cutoff_for in sft_options.h).
  int64_t cutoff = 2048;
  bool train_on_prompt = false;  // not with an encoder of efficient_eos
  bool mask_history = false;     // only the last turn is trained; turns are kept from the last on
};

// How a turn is cut to `limit` tokens: the tail of each part goes.
struct TurnLengths {
  int64_t source = 0;
  int64_t target = 0;
};
TurnLengths cut_turn(int64_t source, int64_t target, int64_t limit);

// Sets `cut` (when given) if tokens were left out.
Sequence encode_conversation(const Conversation& conversation, const TurnEncoder& encoder,
                             const EncodeSettings& settings, bool* cut = nullptr);

// Chosen and rejected rows; both share the prompt, which is that of the chosen conversation.
Sample encode_preference(const Conversation& conversation, const TurnEncoder& encoder, const EncodeSettings& settings,
                         bool* cut = nullptr);

// A document without packing: bos in front where the tokenizer wants it, the text, its end; cut. All of it is trained.
Sequence encode_document(const std::string& text, const tokenizer::Tokenizer& tokenizer, const TemplateTokens& tokens,
                         int64_t cutoff, bool* cut = nullptr);
// A document as it is, for pack_documents: the text and its end.
Sequence whole_document(const std::string& text, const tokenizer::Tokenizer& tokenizer, const TemplateTokens& tokens);
// Documents one behind the other, cut into rows of exactly `cutoff` tokens; the rest is left out. Where the tokenizer
// puts bos in front of a text, it replaces the first token of each row (as the reference does).
std::vector<Sequence> pack_documents(const std::vector<Sequence>& documents, const TemplateTokens& tokens,
                                     int64_t cutoff);

}  // namespace megalith::data

// Turns conversations into token sequences with labels, cut to a number of tokens.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "megalith/data/sample.h"
#include "megalith/data/sft/turn_encoder.h"

namespace megalith::data {

// How conversations become rows.
struct EncodeSettings {
  // Tokens of a sample before the collator shifts it: one more than the option cutoff_len, since the last token is only
  // a label (row_plan in record_encoder.h).
  int64_t cutoff = 2048;
  bool train_on_prompt = false;  // not allowed with an encoder of efficient_eos
  bool mask_history = false;     // only the last turn is trained; if there is too much, the first turns are dropped
  // The placeholders of images and videos, which a cut must not reach: a conversation ends before the turn that would
  // lose one (or, with mask_history, begins after it). If that leaves no turn, the row is empty; so are both rows of
  // such a pair.
  std::vector<int32_t> media_pads{};
};

// Lengths of the two parts of a turn. In tokens; source is what the model is given, target what it has to answer.
struct TurnLengths {
  int64_t source = 0;
  int64_t target = 0;
};
// Returns the lengths to which a turn is cut to fit into `limit` tokens, by LLaMA-Factory's rule. Each part loses its
// tail.
TurnLengths cut_turn(int64_t source, int64_t target, int64_t limit);

// Encodes one row. Sets `cut` (if not nullptr) to true if tokens were left out; likewise below. The row may have fewer
// tokens than the cutoff, never more. Labels stand beside their tokens.
Sequence encode_conversation(const Conversation& conversation, const TurnEncoder& encoder,
                             const EncodeSettings& settings, bool* cut = nullptr);

// Encodes the chosen and rejected rows. Both share the prompt of the chosen conversation.
Sample encode_preference(const Conversation& conversation, const TurnEncoder& encoder, const EncodeSettings& settings,
                         bool* cut = nullptr);

// Encodes the answer to a conversation: only its tokens have labels, and prompt and answer are cut by cut_turn.
Sequence encode_answer(const Conversation& conversation, const TurnEncoder& encoder, const EncodeSettings& settings,
                       bool* cut = nullptr);

// Encodes a document without packing: bos if the tokenizer adds one, the text, the end of the document; then cuts it.
// All tokens are trained.
Sequence encode_document(const std::string& text, const tokenizer::Tokenizer& tokenizer, const TemplateTokens& tokens,
                         int64_t cutoff, bool* cut = nullptr);
// Encodes a document uncut, for pack_documents: the text and the end of the document.
Sequence whole_document(const std::string& text, const tokenizer::Tokenizer& tokenizer, const TemplateTokens& tokens);
// Concatenates documents and cuts them into rows of exactly `cutoff` tokens; the remainder is dropped. If the tokenizer
// adds bos, it replaces the first token of each row, as in LLaMA-Factory.
std::vector<Sequence> pack_documents(const std::vector<Sequence>& documents, const TemplateTokens& tokens,
                                     int64_t cutoff);

}  // namespace megalith::data

// The implementation of Tokenizer.
#pragma once

#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

// Everything that copies of a Tokenizer share.
struct Tokenizer::Impl {
  // Takes over the parts and computes the tables below.
  explicit Impl(Parts parts);

  // Appends the ids of a text without plain added tokens. `at_start` says that it begins where the whole text begins.
  void encode_text(std::string_view text, bool at_start, const EncodeOptions& options, std::vector<int32_t>& ids) const;
  // Returns the offsets in `part` at which its tokens begin.
  std::vector<size_t> starts_within(std::string_view part, std::span<const int32_t> ids) const;
  // Returns the text that the decoder gets for an id; std::nullopt when it has no token.
  std::optional<std::string_view> decoded_token(int32_t id) const;
  // Returns the bytes that an id contributes to a text (requires by_bytes); empty for an id without a token.
  std::string_view bytes_of(int32_t id) const;

  // Constant after construction.
  // The steps, in the order of encoding; nullptr for those that the files do not have.
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;
  AddedTokens added;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  // Ids that the files name.
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::vector<int32_t> stop_ids;
  // One more than the largest id, and the number of tokens.
  int32_t id_end = 0;
  int32_t size = 0;
  std::vector<bool> special;  // by id

  bool by_bytes = false;            // the decoder works token by token, on bytes:
  std::string bytes;                // the bytes of all tokens, concatenated
  std::vector<uint32_t> byte_ends;  // by id: end of its bytes
};

}  // namespace megalith::tokenizer

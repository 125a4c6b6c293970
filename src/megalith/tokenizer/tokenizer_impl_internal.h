// The inside of a Tokenizer.
#pragma once

#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

struct Tokenizer::Impl {
  explicit Impl(Parts parts);

  // Appends the ids of a text without plain added tokens. `at_start`: it begins where the whole text begins.
  void encode_text(std::string_view text, bool at_start, const EncodeOptions& options, std::vector<int32_t>& ids) const;
  // Where in `part` each of its tokens begins.
  std::vector<size_t> starts_within(std::string_view part, std::span<const int32_t> ids) const;
  // What the decoder gets for an id; nothing when it names no token.
  std::optional<std::string_view> decoded_token(int32_t id) const;
  // With by_bytes: what an id adds to the bytes of a text. Empty for an id that names no token.
  std::string_view bytes_of(int32_t id) const;

  // All constant after construction.
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<Model> model;
  AddedTokens added;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::vector<int32_t> stop_ids;
  int32_t id_end = 0;
  int32_t size = 0;
  std::vector<bool> special;  // by id

  bool by_bytes = false;            // the decoder works token by token, on bytes:
  std::string bytes;                // of all tokens, one behind the other
  std::vector<uint32_t> byte_ends;  // by id
};

}  // namespace megalith::tokenizer

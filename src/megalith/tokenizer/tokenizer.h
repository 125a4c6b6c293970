// Text to token ids and back, as the tokenizer files of a Hugging Face model folder say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

struct EncodeOptions {
  bool add_special_tokens = false;     // put the tokens of the post-processor around the ids (BOS, for example)
  bool special_tokens_in_text = true;  // "<|im_end|>" in the text is that token; false: it is text like any other
};

struct TokenizedText {
  std::vector<int32_t> ids;
  std::vector<size_t> starts;  // where in the text, in bytes, each token begins; ascending
};

struct DecodeOptions {
  bool skip_special_tokens = false;  // leave special tokens out
};

// Immutable once loaded: all functions may be called from any number of threads. Copies share everything.
//
// Ids and texts are those of the Python packages tokenizers 0.23 and transformers 5.
class Tokenizer {
 public:
  // Reads tokenizer.json, or else vocab.json and merges.txt, or else tokenizer.model (SentencePiece) from a folder,
  // with tokenizer_config.json, special_tokens_map.json and generation_config.json where they are. Throws DataError,
  // naming the file and the field, for what is missing, broken or not supported, and ConfigError when this build lacks
  // the library that the file needs (PCRE2 and utf8proc; SentencePiece).
  static Tokenizer from_folder(const std::filesystem::path& folder);

  // A tokenizer.json that is in memory; `name` stands for the file in messages.
  static Tokenizer from_json(std::string_view json, const std::string& name = "tokenizer.json");

  // Ids 0 to 255 are bytes, followed by <|bos|> (256), <|eos|> (257) and <|pad|> (258). Needs no files and no library.
  static Tokenizer bytes();

  // Throws DataError when `text` is not valid UTF-8 (utf8.h has replace_invalid_utf8).
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // All texts, by up to `threads` threads; result i belongs to text i. Of several errors the first text's is thrown.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts, const EncodeOptions& options = {},
                                                 int threads = 1) const;

  // encode(text), and where its tokens stand. A token that begins inside of a character, or inside of characters that
  // the normalizer joins, begins where they do. Exact where tokens stand for bytes (byte-level models); elsewhere found
  // by comparing their texts with the text, and so within a character or two of what the normalizer has changed.
  TokenizedText encode_with_starts(std::string_view text) const;

  // Always valid UTF-8: each maximal part of the bytes that is not becomes U+FFFD. Ids that name no token are left out.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  class StreamDecoder;

  // Number of tokens, added ones included: len(tokenizer) in Python.
  int32_t vocab_size() const;
  // One more than the largest id; more than vocab_size() when ids have gaps.
  int32_t id_end() const;
  std::optional<int32_t> id_of(std::string_view token) const;
  std::optional<std::string> token_of(int32_t id) const;
  bool is_special(int32_t id) const;

  // As the files name them; nothing when they do not.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // Ids that end a generated text: eos_id and those of generation_config.json, ascending.
  const std::vector<int32_t>& stop_ids() const;

  struct Parts;  // tokenizer_parts_internal.h
  explicit Tokenizer(Parts parts);

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// The text of ids as they arrive. What push returns never ends inside a character; bytes that may still become one are
// held back. All results one behind the other, finish() included, are decode() of all ids (for decoders with byte
// fallback: as long as the bytes are valid).
//
//   Tokenizer::StreamDecoder stream(tokenizer);
//   for (int32_t id : generated) print(stream.push(id));
//   print(stream.finish());
class Tokenizer::StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options = {});

  // The text that is certain now and was not before.
  std::string push(int32_t id);
  // The rest, with U+FFFD for what stayed incomplete. Afterwards a new sequence may begin.
  std::string finish();

 private:
  std::string push_bytes(int32_t id);
  std::string push_tokens(int32_t id);

  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;          // ByteLevel: bytes of an unfinished character
  std::vector<int32_t> ids_;  // other decoders: those that the next text may depend on
  size_t settled_ = 0;        // how many of them were given out
  std::string given_;         // decode() of those
};

}  // namespace megalith::tokenizer

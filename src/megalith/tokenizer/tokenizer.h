// Tokenizer: converts text to token ids and back, by the tokenizer files of a Hugging Face model folder.
//
//   const Tokenizer tokenizer = Tokenizer::from_folder(folder);
//   const std::vector<int32_t> ids = tokenizer.encode("Hello world");
//   const std::string text = tokenizer.decode(ids);
//
// tokenizer.cc shows the steps between text and ids; steps/ has the steps, models/ the models, regex/ and text/ what
// these are built on, jinja/ and chat/ the templates of conversations, training/ the way to a new tokenizer.
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

// How a text is encoded.
struct EncodeOptions {
  bool add_special_tokens = false;     // put the post-processor's tokens around the ids (BOS, for example)
  bool special_tokens_in_text = true;  // "<|im_end|>" in the text is that token; false: plain text
  // The bytes [plain_begin, plain_end) are plain text in any case, including special tokens that begin there. For a
  // user's text between a template's markers.
  size_t plain_begin = 0;
  size_t plain_end = 0;
};

// The ids of a text, and where their tokens begin.
struct TokenizedText {
  std::vector<int32_t> ids;
  std::vector<size_t> starts;  // byte offset in the text at which each token begins; ascending
};

// How ids are decoded.
struct DecodeOptions {
  bool skip_special_tokens = false;  // leave special tokens out of the text
};

// Immutable once loaded: all functions may be called from any number of threads. Copies share all data.
//
// Ids and texts equal those of the Python packages tokenizers 0.23 and transformers 5.
class Tokenizer {
 public:
  // Reads tokenizer.json, or else vocab.json and merges.txt, or else tokenizer.model (SentencePiece) from a folder,
  // together with tokenizer_config.json, special_tokens_map.json and generation_config.json if they exist. Throws
  // DataError, naming the file and the field, for anything missing, broken or unsupported; throws ConfigError when this
  // build lacks a library that the file needs (PCRE2 and utf8proc; SentencePiece).
  static Tokenizer from_folder(const std::filesystem::path& folder);

  // Reads a tokenizer.json from memory; `name` is its name in messages.
  static Tokenizer from_json(std::string_view json, const std::string& name = "tokenizer.json");

  // Returns a tokenizer whose ids 0 to 255 are bytes, followed by <|bos|> (256), <|eos|> (257) and <|pad|> (258). Needs
  // no files and no libraries.
  static Tokenizer bytes();

  // Throws DataError when `text` is not valid UTF-8 (see replace_invalid_utf8 in utf8.h).
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Encodes all texts with up to `threads` threads; result i belongs to text i. Of several errors, throws that of the
  // first text.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts, const EncodeOptions& options = {},
                                                 int threads = 1) const;

  // Returns encode(text) and the places of its tokens. A token that begins inside a character, or inside characters
  // that the normalizer joins, is placed at their beginning. Exact if tokens stand for bytes (byte-level models);
  // otherwise found by comparing the tokens with the text, and so within a character or two wherever the normalizer
  // changed the text.
  TokenizedText encode_with_starts(std::string_view text) const;

  // Returns valid UTF-8: each maximal invalid part of the bytes becomes U+FFFD. Ids without a token are skipped.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  class StreamDecoder;

  // Returns the number of tokens, including added ones: len(tokenizer) in Python.
  int32_t vocab_size() const;
  // Returns one more than the largest id, which is more than vocab_size() when ids have gaps.
  int32_t id_end() const;
  // Look up a token or an id; std::nullopt when there is none.
  std::optional<int32_t> id_of(std::string_view token) const;
  std::optional<std::string> token_of(int32_t id) const;
  // Whether decode() leaves the token out with skip_special_tokens.
  bool is_special(int32_t id) const;

  // Ids that the files name; std::nullopt when they do not.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // Ids that end a generated text, ascending: eos_id and those of generation_config.json.
  const std::vector<int32_t>& stop_ids() const;

  struct Parts;  // tokenizer_parts_internal.h
  explicit Tokenizer(Parts parts);

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Decodes ids as they arrive. The text that push returns never ends inside a character; bytes that may still become one
// are held back. All results concatenated, including finish(), equal decode() of all ids (for decoders with byte
// fallback only as long as the bytes are valid).
//
//   Tokenizer::StreamDecoder stream(tokenizer);
//   for (int32_t id : generated) print(stream.push(id));
//   print(stream.finish());
class Tokenizer::StreamDecoder {
 public:
  // Keeps a copy of the tokenizer, which shares all data.
  explicit StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options = {});

  // Returns the text that has become certain with this id.
  std::string push(int32_t id);
  // Returns the rest, with U+FFFD for anything that stayed incomplete. A new sequence may follow.
  std::string finish();

 private:
  std::string push_bytes(int32_t id);
  std::string push_tokens(int32_t id);

  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;          // ByteLevel: bytes of an unfinished character
  std::vector<int32_t> ids_;  // other decoders: ids on which the next text may depend
  size_t settled_ = 0;        // number of these whose text was returned
  std::string given_;         // decode() of those
};

}  // namespace megalith::tokenizer

// Vocabulary: tokens by id and ids by token. All texts are in one string and both directions are arrays, so a
// vocabulary of 150,000 tokens is three allocations and about 6 MB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// Ids may have gaps, but must be below kMaxIds: a file with a larger id is broken.
class Vocabulary {
 public:
  // 16 million; the largest published vocabularies have a quarter of a million.
  static constexpr int64_t kMaxIds = int64_t{1} << 24;

  // Makes room for tokens with so many bytes together.
  void reserve(size_t tokens, size_t bytes);
  // Requires that the id is free and below kMaxIds, and that the token is new.
  void add(std::string_view token, int32_t id);

  // Returns the id of a token; std::nullopt when there is none.
  std::optional<int32_t> find(std::string_view token) const;
  // Returns std::nullopt for an id without a token. The view is valid until the next add.
  std::optional<std::string_view> token(int32_t id) const;

  // The number of tokens, at most id_end().
  size_t size() const { return count_; }
  // Returns one more than the largest id.
  int32_t id_end() const { return static_cast<int32_t>(spans_.size()); }

 private:
  // A token's place in text_.
  struct Span {
    uint32_t begin = 0;
    int32_t length = -1;  // -1: no token has this id
  };

  // 8 bytes, so that eight slots share a cache line.
  struct Slot {
    uint32_t tag = 0;  // upper bits of the hash: skips most other tokens without comparing their text
    int32_t id = -1;   // -1: free
  };

  // The text of a token.
  std::string_view view(const Span& span) const {
    return {text_.data() + span.begin, static_cast<size_t>(span.length)};
  }
  // The hash table; slots hold ids, the text is in text_.
  void grow(size_t slots);
  void insert(uint64_t hash, int32_t id);

  std::string text_;         // all tokens, concatenated
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing by hash; a power of two, at most half full
  // Tokens so far.
  size_t count_ = 0;
};

}  // namespace megalith::tokenizer

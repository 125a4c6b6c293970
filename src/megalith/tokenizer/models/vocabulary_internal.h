// Vocabulary: tokens by id and ids by token.
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
  static constexpr int64_t kMaxIds = int64_t{1} << 24;

  void reserve(size_t tokens, size_t bytes);
  // Requires that the id is free and below kMaxIds, and that the token is new.
  void add(std::string_view token, int32_t id);

  std::optional<int32_t> find(std::string_view token) const;
  // Returns std::nullopt for an id without a token. The view is valid until the next add.
  std::optional<std::string_view> token(int32_t id) const;

  size_t size() const { return count_; }
  // Returns one more than the largest id.
  int32_t id_end() const { return static_cast<int32_t>(spans_.size()); }

 private:
  struct Span {
    uint32_t begin = 0;
    int32_t length = -1;  // -1: no token has this id
  };

  struct Slot {
    uint32_t tag = 0;  // upper bits of the hash: skips most other tokens without comparing their text
    int32_t id = -1;   // -1: free
  };

  std::string_view view(const Span& span) const {
    return {text_.data() + span.begin, static_cast<size_t>(span.length)};
  }
  void grow(size_t slots);
  void insert(uint64_t hash, int32_t id);

  std::string text_;         // all tokens, concatenated
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing by hash; a power of two, at most half full
  size_t count_ = 0;
};

}  // namespace megalith::tokenizer

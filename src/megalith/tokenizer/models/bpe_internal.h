// Byte-pair encoding as in tokenizers' BPE model: a piece starts as characters; then, again and again, the pair of
// neighbors with the lowest rank is merged, leftmost first, until no pair has a rank.
//
//   piece ─► WordCache ──hit──► ids
//                └─miss─► ignore_merges: the whole piece? ─► characters or bytes ─► Merger ─► ids, and into the cache
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/tokenizer/models/merge_table_internal.h"
#include "megalith/tokenizer/models/model_internal.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/text/hash_internal.h"
#include "megalith/tokenizer/text/pool_internal.h"

namespace megalith::tokenizer {

// A cache of the ids of words with a fixed size (kSlots · 64 bytes): direct-mapped, a new word replaces the one in its
// slot. For one thread.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 30;  // longer words are rare and not kept
  static constexpr size_t kMaxIds = 8;

  // 2 MiB, allocated once per thread that encodes at the same time.
  WordCache() : slots_(kSlots) {}

  // Appends the ids of the word; returns false when it is not in the cache. Requires 0 < word.size() <= kMaxBytes.
  bool find(std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
    // One cache line per lookup, hit or miss.
    const Slot& slot = slots_[hash % kSlots];
    if (slot.length != word.size() || std::memcmp(slot.word.data(), word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return true;
  }

  // Stores a word, unless it has too many ids for a slot.
  void put(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    // Words of more than 8 tokens are rare; they are merged again each time.
    if (ids.size() > kMaxIds) return;
    Slot& slot = slots_[hash % kSlots];
    slot.length = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.word.data(), word.data(), word.size());
    std::ranges::copy(ids, slot.ids.begin());
  }

 private:
  // 32,768 words: the frequent ones of a text or two.
  static constexpr size_t kSlots = size_t{1} << 15;
  // One cache line: 2 + 30 + 32 bytes.
  struct alignas(64) Slot {
    uint8_t length = 0;  // 0 means free
    uint8_t count = 0;
    std::array<char, kMaxBytes> word;
    std::array<int32_t, kMaxIds> ids;
  };
  static_assert(sizeof(Slot) == 64);

  std::vector<Slot> slots_;
};

// Settings of the model, under the names of tokenizer.json.
struct BpeOptions {
  std::string unk_token;  // token of characters that are not in the vocabulary; if empty, they are dropped
  std::string continuing_subword_prefix;  // prefix of every character of a piece but the first
  std::string end_of_word_suffix;         // suffix of the last character of a piece
  // Treatment of unknown characters, and of pieces that are tokens.
  bool fuse_unk = false;       // adjacent unknown characters become one unknown token
  bool byte_fallback = false;  // an unknown character becomes its bytes, <0xE4><0xB8><0x80>, if these are tokens
  bool ignore_merges = false;  // a piece that is itself a token is not split
};

// See bpe.cc for the steps.
class Bpe final : public Model {
 public:
  // `merges` are ordered by rank. `where` names the file and field in messages. Throws DataError for a merge or an
  // unk_token that names a token not in the vocabulary.
  Bpe(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, BpeOptions options,
      const std::string& where);
  ~Bpe() override;

  void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const override;
  std::optional<int32_t> id_of(std::string_view token) const override { return vocabulary_.find(token); }
  std::optional<std::string_view> token_of(int32_t id) const override { return vocabulary_.token(id); }
  size_t size() const override { return vocabulary_.size(); }
  int32_t id_end() const override { return vocabulary_.id_end(); }

  // Makes tokenize() take plain bytes from now on. Requires can_take_bytes().
  void take_bytes() { bytes_ = true; }
  // Returns whether the character of every byte is a token, and no option changes characters.
  bool can_take_bytes() const;
  bool takes_bytes() const override { return bytes_; }

 private:
  struct Scratch;

  // Appends the ids of one piece, from the cache or by merging.
  void tokenize_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  // Returns the token that is the whole piece, if there is one.
  std::optional<int32_t> whole_token(std::string_view piece, Scratch& scratch) const;
  // Fills the merger with the tokens of single characters or bytes.
  void start_symbols(std::string_view piece, Scratch& scratch) const;

  // Constant after take_bytes().
  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  // Ids that are looked up once instead of once per piece.
  std::optional<int32_t> unk_id_;
  std::array<int32_t, 256> byte_ids_{};      // id of each byte's character; -1 if not in the vocabulary
  std::array<int32_t, 256> fallback_ids_{};  // ids of <0x00> to <0xFF>; -1 if not in the vocabulary
  bool bytes_ = false;
  // The only thing that changes while encoding.
  mutable Pool<Scratch> scratch_;
};

}  // namespace megalith::tokenizer

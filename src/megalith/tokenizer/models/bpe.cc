// Tokenizes a piece: looks it up in the word cache first (most words of a text repeat); otherwise splits it into
// characters or bytes and merges these. Each call works with its own Scratch from a pool, so the model itself stays
// immutable.
//
// With take_bytes() pieces are plain bytes: the 256 characters of the byte alphabet are replaced by a table of their
// ids, which saves writing every byte as a two-byte character and looking it up again.
#include "megalith/tokenizer/models/bpe_internal.h"

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/byte_alphabet_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

// Working memory of one call.
struct Bpe::Scratch {
  WordCache cache;
  Merger merger;
  std::string text;  // a token being assembled
};

Bpe::Bpe(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, BpeOptions options,
         const std::string& where)
    : vocabulary_(std::move(vocabulary)), merges_(merges.size()), options_(std::move(options)) {
  // Merges name tokens; the table needs ids.
  // Returns the id of a token that a merge names.
  const auto id_in = [&](size_t rank, std::string_view token) {
    const auto id = vocabulary_.find(token);
    check<DataError>(id.has_value(), "{}: merge {} (\"{}\" and \"{}\") names \"{}\", which is not in the vocabulary",
                     where, rank, merges[rank].first, merges[rank].second, token);
    return *id;
  };
  const size_t prefix = options_.continuing_subword_prefix.size();
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    check<DataError>(right.size() >= prefix,
                     "{}: merge {} (\"{}\" and \"{}\") lacks the continuing_subword_prefix \"{}\"", where, rank, left,
                     right, options_.continuing_subword_prefix);
    joined.assign(left).append(right, prefix);  // the second token loses its prefix when joined
    const int32_t left_id = id_in(rank, left), right_id = id_in(rank, right);
    merges_.set(left_id, right_id, {static_cast<uint32_t>(rank), id_in(rank, joined)});
  }
  if (!options_.unk_token.empty()) {
    unk_id_ = vocabulary_.find(options_.unk_token);
    check<DataError>(unk_id_.has_value(), "{}: unk_token is \"{}\", which is not in the vocabulary", where,
                     options_.unk_token);
  }
  // Both ways in which a vocabulary may name bytes: as a character of the alphabet, or as <0x0A>.
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_.at(byte) = vocabulary_.find(character_of_byte(static_cast<unsigned char>(byte))).value_or(-1);
    fallback_ids_.at(byte) = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

Bpe::~Bpe() = default;

bool Bpe::can_take_bytes() const {
  for (const int32_t id : byte_ids_)
    if (id < 0) return false;
  return options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
}

void Bpe::tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const {
  const auto scratch = scratch_.borrow([] { return std::make_unique<Scratch>(); });
  for (const Span& span : pieces.spans()) tokenize_piece(pieces.view(span), *scratch, ids);
}

void Bpe::tokenize_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  // Hashing pays only for pieces that fit into a slot.
  const bool cached = piece.size() <= WordCache::kMaxBytes;
  const uint64_t hash = cached ? hash_bytes(piece) : 0;
  if (cached && scratch.cache.find(piece, hash, ids)) return;
  std::vector<int32_t>& symbols = scratch.merger.symbols;
  symbols.clear();
  // Llama 3's ignore_merges: a piece that is a token as a whole is that token, whatever its merges would give.
  if (const auto whole = options_.ignore_merges ? whole_token(piece, scratch) : std::nullopt) {
    symbols.push_back(*whole);
  } else {
    start_symbols(piece, scratch);
    scratch.merger.run(merges_);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (cached) scratch.cache.put(piece, hash, symbols);
}

std::optional<int32_t> Bpe::whole_token(std::string_view piece, Scratch& scratch) const {
  if (!bytes_) return vocabulary_.find(piece);
  scratch.text.clear();
  append_byte_characters(scratch.text, piece);
  return vocabulary_.find(scratch.text);
}

// Follows BPE::merge_word of tokenizers, including that an unknown token waiting to be fused is put after the bytes of
// a character that falls back to bytes.
void Bpe::start_symbols(std::string_view piece, Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.merger.symbols;
  // Every byte is a token (can_take_bytes), so nothing can be unknown here.
  if (bytes_) {
    for (const char byte : piece) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    return;
  }
  bool unknown_waits = false;
  const auto flush = [&] {
    if (unknown_waits) symbols.push_back(*unk_id_);
    unknown_waits = false;
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t length = utf8_length(piece[at]);
    std::string& text = scratch.text;
    text.clear();
    if (at > 0) text += options_.continuing_subword_prefix;
    text += piece.substr(at, length);
    if (at + length == piece.size()) text += options_.end_of_word_suffix;
    at += length;
    if (const auto id = vocabulary_.find(text)) {
      flush();
      symbols.push_back(*id);
      continue;
    }
    // All bytes of the character must be tokens; otherwise it is unknown as a whole.
    if (options_.byte_fallback) {
      const size_t before = symbols.size();
      for (const char byte : text) symbols.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
      if (std::find(symbols.begin() + static_cast<std::ptrdiff_t>(before), symbols.end(), -1) == symbols.end())
        continue;
      symbols.resize(before);
    }
    if (!unk_id_) continue;  // without an unknown token the character is dropped
    if (!options_.fuse_unk) flush();
    unknown_waits = true;
  }
  flush();
}

}  // namespace megalith::tokenizer

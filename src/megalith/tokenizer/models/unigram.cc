// The Viterbi algorithm: best[e] is the best way to cover the first e bytes of a piece, found from left to right. At
// each character a walk through the prefix tree offers every token that starts there; an unknown character costs more
// than any token. The path is then read backwards.
#include "megalith/tokenizer/models/unigram_internal.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

constexpr double kUnknownPenalty = 10.0;  // how far below the lowest score an unknown character is

// All tokens, including the unknown one; the tree keeps references into the vocabulary's text only while it is built.
std::vector<PrefixTree::Key> keys_of(const Vocabulary& vocabulary) {
  std::vector<PrefixTree::Key> keys;
  for (int32_t id = 0; id < vocabulary.id_end(); ++id)
    if (const auto token = vocabulary.token(id)) keys.push_back({*token, id});
  return keys;
}

}  // namespace

// The best way to reach a position.
struct Unigram::Step {
  double score = 0;    // sum of the scores
  int32_t begin = -1;  // start of its last token; -1: unreachable
  int32_t id = -1;
};

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<int32_t> unk_id, bool byte_fallback,
                 std::string where)
    : vocabulary_(std::move(vocabulary)),
      scores_(std::move(scores)),
      unk_score_((scores_.empty() ? 0 : *std::ranges::min_element(scores_)) - kUnknownPenalty),
      unk_id_(unk_id),
      tree_(keys_of(vocabulary_)),
      where_(std::move(where)) {
  fallback_ids_.fill(-1);
  if (!byte_fallback) return;
  for (unsigned byte = 0; byte < 256; ++byte)
    fallback_ids_.at(byte) = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
}

void Unigram::tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const {
  std::vector<Step> best;
  for (const Span& span : pieces.spans()) tokenize_piece(pieces.view(span), best, ids);
}

// Writes a run of unknown characters: as bytes if all of these have tokens, otherwise as one unknown token.
void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto id = vocabulary_.find(text)) {  // the unknown token itself, written out in the text
    ids.push_back(*id);
    return;
  }
  const bool all_bytes =
      std::ranges::all_of(text, [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)] >= 0; });
  if (all_bytes) {
    for (const char c : text) ids.push_back(fallback_ids_[static_cast<unsigned char>(c)]);
  } else {
    ids.push_back(*unk_id_);
  }
}

// Unigram::encode_optimized of tokenizers, with its order of comparisons, which decides between equal sums.
void Unigram::tokenize_piece(std::string_view piece, std::vector<Step>& best, std::vector<int32_t>& ids) const {
  best.assign(piece.size() + 1, {});
  // Strictly better only: of equal sums the first that was offered stays.
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    if (best[end].begin < 0 || score > best[end].score) best[end] = {score, static_cast<int32_t>(begin), id};
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t length = utf8_length(piece[at]);
    const double score = best[at].score;
    bool whole_character = false;
    tree_.walk(piece.substr(at), [&](size_t bytes, int32_t id) {
      offer(at, at + bytes, score + scores_[static_cast<size_t>(id)], id);
      whole_character = whole_character || bytes == length;
    });
    if (!whole_character) {
      check<DataError>(unk_id_.has_value(),
                       "{}: the text has \"{}\", which is not in the vocabulary, and unk_id is not set", where_,
                       piece.substr(at, length));
      offer(at, at + length, score + unk_score_, *unk_id_);
    }
    at += length;
  }
  // Reads the path backwards, merging adjacent unknown characters.
  std::vector<std::pair<Span, int32_t>> path;
  for (auto end = static_cast<uint32_t>(piece.size()); end > 0;) {
    const Step& step = best[end];
    const auto begin = static_cast<uint32_t>(step.begin);
    if (step.id == unk_id_ && !path.empty() && path.back().second == unk_id_) {
      path.back().first.begin = begin;
    } else {
      path.push_back({{begin, end}, step.id});
    }
    end = begin;
  }
  for (auto token = path.rbegin(); token != path.rend(); ++token) {
    if (token->second == unk_id_) {
      append_unknown(piece.substr(token->first.begin, token->first.end - token->first.begin), ids);
    } else {
      ids.push_back(token->second);
    }
  }
}

}  // namespace megalith::tokenizer

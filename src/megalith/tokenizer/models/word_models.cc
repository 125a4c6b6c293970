// The simple models: one token per word (WordLevel), BERT's longest-match-first pieces (WordPiece: "playing" is
// "play" "##ing"), and one token per byte.
#include "megalith/tokenizer/models/word_models_internal.h"

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

// max_input_chars_per_word counts characters, not bytes.
size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) ++count;
  return count;
}

// Returns the id of the unknown token; a vocabulary without one can only encode texts that it covers.
int32_t checked_unknown(const std::optional<int32_t>& id, const std::string& unk_token, const std::string& where,
                        std::string_view piece) {
  check<DataError>(id.has_value(),
                   "{}: the text has \"{}\", which is not in the vocabulary, and neither is unk_token \"{}\"", where,
                   piece.substr(0, 100), unk_token);
  return *id;
}

}  // namespace

WordLevel::WordLevel(Vocabulary vocabulary, std::string unk_token, std::string where)
    : VocabularyModel(std::move(vocabulary)),
      unk_token_(std::move(unk_token)),
      unk_id_(vocabulary_.find(unk_token_)),
      where_(std::move(where)) {}

void WordLevel::tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const {
  for (const Span& span : pieces.spans()) {
    const std::string_view piece = pieces.view(span);
    const auto id = vocabulary_.find(piece);
    ids.push_back(id ? *id : checked_unknown(unk_id_, unk_token_, where_, piece));
  }
}

WordPiece::WordPiece(Vocabulary vocabulary, std::string unk_token, std::string prefix, size_t max_characters,
                     std::string where)
    : VocabularyModel(std::move(vocabulary)),
      unk_token_(std::move(unk_token)),
      unk_id_(vocabulary_.find(unk_token_)),
      prefix_(std::move(prefix)),
      max_characters_(max_characters),
      where_(std::move(where)) {}

// Greedy, longest first; each try that fails drops the last character.
bool WordPiece::append_tokens(std::string_view piece, std::vector<int32_t>& ids) const {
  std::string text;
  for (size_t begin = 0; begin < piece.size();) {
    size_t end = piece.size();
    std::optional<int32_t> id;
    while (begin < end) {
      text.assign(begin > 0 ? prefix_ : "").append(piece.substr(begin, end - begin));
      id = vocabulary_.find(text);
      if (id) break;
      end = previous_character(piece, end);
    }
    if (!id) return false;
    ids.push_back(*id);
    begin = end;
  }
  return true;
}

void WordPiece::tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const {
  for (const Span& span : pieces.spans()) {
    const std::string_view piece = pieces.view(span);
    const size_t before = ids.size();
    // One unknown part makes the whole piece unknown, as in BERT: "playzzz" does not become "play" and [UNK].
    if (count_characters(piece) <= max_characters_ && append_tokens(piece, ids)) continue;
    ids.resize(before);  // drops the tokens of a piece that failed halfway
    ids.push_back(checked_unknown(unk_id_, unk_token_, where_, piece));
  }
}

// Tokens are named <0x00> to <0xFF>, so that make_byte_decoder finds the byte of each.
ByteModel::ByteModel() : VocabularyModel({}) {
  for (int32_t byte = 0; byte < 256; ++byte) vocabulary_.add(fmt::format("<0x{:02X}>", byte), byte);
}

void ByteModel::tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const {
  for (const Span& span : pieces.spans())
    for (const char byte : pieces.view(span)) ids.push_back(static_cast<unsigned char>(byte));
}

}  // namespace megalith::tokenizer

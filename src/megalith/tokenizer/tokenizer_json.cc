// Reads a tokenizer.json: each part by its "type", then the shortcut for byte-level models. Members that are null or
// absent are steps that do nothing. truncation and padding are ignored: callers cut and pad batches themselves.
#include "megalith/base/error.h"
#include "megalith/tokenizer/models/bpe_internal.h"
#include "megalith/tokenizer/models/unigram_internal.h"
#include "megalith/tokenizer/models/word_models_internal.h"
#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/steps/component_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/tokenizer_document_internal.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

namespace {

using ModelPointer = std::unique_ptr<Model>;

// The vocabulary was read while parsing; it is missing if it was not an object.
Vocabulary take_vocabulary(const JsonNode& model, TokenizerDocument& document) {
  if (!document.vocabulary) model.at("vocab").fail("is not an object of tokens and their ids");
  return std::move(*document.vocabulary);
}

ModelPointer read_bpe_model(const JsonNode& node, TokenizerDocument& document) {
  if (const auto dropout = node.find("dropout"); dropout && dropout->number() != 0)
    dropout->fail("is not 0; random merges are not supported. Set it to null.");
  BpeOptions options;
  // Absent members have tokenizers' defaults.
  options.unk_token = node.string_or("unk_token", "");
  options.continuing_subword_prefix = node.string_or("continuing_subword_prefix", "");
  options.end_of_word_suffix = node.string_or("end_of_word_suffix", "");
  options.fuse_unk = node.boolean_or("fuse_unk", false);
  options.byte_fallback = node.boolean_or("byte_fallback", false);
  options.ignore_merges = node.boolean_or("ignore_merges", false);
  if (!document.merges) node.at("merges").fail("is not an array of merges");
  return std::make_unique<Bpe>(take_vocabulary(node, document), *document.merges, std::move(options), node.where());
}

// The vocabulary is a list of [token, score]; the id is the position.
ModelPointer read_unigram_model(const JsonNode& node, TokenizerDocument&) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  const JsonNode list = node.at("vocab");
  const size_t count = list.array_size();
  if (count > static_cast<size_t>(Vocabulary::kMaxIds)) list.fail("is too long");
  // [["<unk>", 0.0], ["▁the", -3.1], …]: log probabilities.
  for (size_t i = 0; i < count; ++i) {
    const JsonNode entry = list.at(i);
    const std::string token = entry.at(0).string();
    if (const auto id = vocabulary.find(token))
      entry.fail(fmt::format("is \"{}\", which is already token {}", token, *id));
    vocabulary.add(token, static_cast<int32_t>(i));
    scores.push_back(entry.at(1).number());
  }
  std::optional<int32_t> unk_id;
  if (const auto unk = node.find("unk_id"))
    unk_id = static_cast<int32_t>(unk->integer(0, static_cast<int64_t>(count) - 1));
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unk_id,
                                   node.boolean_or("byte_fallback", false), node.where());
}

ModelPointer read_word_level_model(const JsonNode& node, TokenizerDocument& document) {
  return std::make_unique<WordLevel>(take_vocabulary(node, document), node.string_or("unk_token", "<unk>"),
                                     node.where());
}

ModelPointer read_word_piece_model(const JsonNode& node, TokenizerDocument& document) {
  // 100 is tokenizers' default, as are the names of the unknown tokens.
  const auto longest = node.find("max_input_chars_per_word");
  return std::make_unique<WordPiece>(take_vocabulary(node, document), node.string_or("unk_token", "[UNK]"),
                                     node.string_or("continuing_subword_prefix", "##"),
                                     longest ? static_cast<size_t>(longest->integer(0, INT32_MAX)) : 100, node.where());
}

ModelPointer read_model(const JsonNode& node, TokenizerDocument& document) {
  // Old files have no type; the members tell which model it is.
  if (!node.find("type")) {
    if (document.merges) return read_bpe_model(node, document);
    if (!document.vocabulary) return read_unigram_model(node, document);
    return node.find("max_input_chars_per_word") ? read_word_piece_model(node, document)
                                                 : read_word_level_model(node, document);
  }
  return read_component<ModelPointer, TokenizerDocument&>(node, "model",
                                                          {{"BPE", read_bpe_model},
                                                           {"Unigram", read_unigram_model},
                                                           {"WordLevel", read_word_level_model},
                                                           {"WordPiece", read_word_piece_model}},
                                                          document);
}

// A special token is searched for in the original text by default, others in normalized text.
void read_added_tokens(const JsonNode& list, Tokenizer::Parts& parts) {
  for (size_t i = 0; i < list.array_size(); ++i) {
    const JsonNode node = list.at(i);
    AddedToken token;
    token.content = node.at("content").string();
    token.id = static_cast<int32_t>(node.at("id").integer(0, Vocabulary::kMaxIds - 1));
    token.single_word = node.boolean_or("single_word", false);
    token.lstrip = node.boolean_or("lstrip", false);
    token.rstrip = node.boolean_or("rstrip", false);
    token.special = node.boolean_or("special", false);
    token.normalized = node.boolean_or("normalized", !token.special);
    parts.add(std::move(token), node.where());
  }
}

// One more than the largest id of the model or an added token.
int64_t end_of_ids(const Tokenizer::Parts& parts) {
  int64_t end = parts.model->id_end();
  for (const AddedToken& token : parts.added) end = std::max<int64_t>(end, token.id + 1);
  return end;
}

// If pieces end as characters that stand for bytes, and the model is a BPE over these, lets both work on the bytes
// themselves.
void use_bytes(Tokenizer::Parts& parts) {
  auto* bpe = dynamic_cast<Bpe*>(parts.model.get());
  if (bpe != nullptr && bpe->can_take_bytes() && parts.pre_tokenizer && parts.pre_tokenizer->leave_bytes())
    bpe->take_bytes();
}

}  // namespace

// The order matters: added tokens need the model's ids, the post-processor needs both.
Tokenizer::Parts read_tokenizer_json(std::string_view json, const std::string& file) {
  require_regex(file);
  require_unicode(file);
  TokenizerDocument document = parse_tokenizer_document(json, file);
  const JsonNode root(document.rest, file);
  if (const auto version = root.find("version"); version && version->string() != "1.0")
    version->fail(fmt::format("is \"{}\"; only version 1.0 of the format is known", version->string()));
  Tokenizer::Parts parts;
  parts.source = file;
  parts.model = read_model(root.at("model"), document);
  if (const auto node = root.find("normalizer")) parts.normalizer = read_normalizer(*node);
  if (const auto node = root.find("pre_tokenizer")) parts.pre_tokenizer = read_pre_tokenizer(*node);
  if (const auto node = root.find("decoder")) parts.decoder = read_decoder(*node);
  if (const auto node = root.find("added_tokens")) read_added_tokens(*node, parts);
  if (const auto node = root.find("post_processor"))
    parts.post_processor = read_post_processor(*node, end_of_ids(parts));
  use_bytes(parts);
  return parts;
}

}  // namespace megalith::tokenizer

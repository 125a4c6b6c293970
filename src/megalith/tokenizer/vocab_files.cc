// Reads vocab.json and merges.txt, the files of a byte-level model before there was a tokenizer.json. The other steps
// are taken from the class that tokenizer_config.json names, GPT-2's by default, as transformers' slow tokenizers have
// them.
#include "megalith/base/error.h"
#include "megalith/tokenizer/models/bpe_internal.h"
#include "megalith/tokenizer/models/vocabulary_json_internal.h"
#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

namespace {

// The steps that these files do not contain, because the tokenizer's class implies them.
constexpr std::string_view kGpt2 = R"({
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "decoder": {"type": "ByteLevel"}})";

constexpr std::string_view kQwen2 = R"--({
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
  "decoder": {"type": "ByteLevel"}})--";

// Returns the steps in the form of a tokenizer.json, so that one reader serves both.
nlohmann::json parts_of_class(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer_config.json";
  nlohmann::json config = nlohmann::json::object();
  if (std::filesystem::exists(path)) config = parse_json(read_file(path), path.string());
  const JsonNode node(config, path.string());
  if (node.string_or("tokenizer_class", "").starts_with("Qwen2Tokenizer")) return nlohmann::json::parse(kQwen2);
  nlohmann::json parts = nlohmann::json::parse(kGpt2);
  parts["pre_tokenizer"]["add_prefix_space"] = node.boolean_or("add_prefix_space", false);
  return parts;
}

}  // namespace

Tokenizer::Parts read_vocab_and_merges(const std::filesystem::path& folder) {
  const std::string vocab_file = (folder / "vocab.json").string(), merges_file = (folder / "merges.txt").string();
  require_regex(vocab_file);
  require_unicode(vocab_file);
  const nlohmann::json vocab = parse_json(read_file(vocab_file), vocab_file);
  auto bpe = std::make_unique<Bpe>(read_vocabulary(JsonNode(vocab, vocab_file)),
                                   parse_merges(read_file(merges_file), merges_file), BpeOptions{}, merges_file);
  const nlohmann::json document = parts_of_class(folder);
  const JsonNode root(document, vocab_file);
  Tokenizer::Parts parts;
  parts.source = vocab_file;
  if (const auto node = root.find("normalizer")) parts.normalizer = read_normalizer(*node);
  parts.pre_tokenizer = read_pre_tokenizer(root.at("pre_tokenizer"));
  parts.decoder = read_decoder(root.at("decoder"));
  if (bpe->can_take_bytes() && parts.pre_tokenizer->leave_bytes()) bpe->take_bytes();
  parts.model = std::move(bpe);

  if (const auto path = folder / "added_tokens.json"; std::filesystem::exists(path)) {
    const nlohmann::json added = parse_json(read_file(path), path.string());
    const JsonNode node(added, path.string());
    if (!node.is_object()) node.fail("is not an object of tokens and their ids");
    for (const auto& [content, id] : added.items())
      parts.add({.content = content,
                 .id = static_cast<int32_t>(node.at(content).integer(0, Vocabulary::kMaxIds - 1)),
                 .normalized = true},
                path.string());
  }
  return parts;
}

}  // namespace megalith::tokenizer

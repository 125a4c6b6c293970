// Reads the files beside a tokenizer's own: which tokens are special, and which of them begin, end and pad. The rules
// are those of transformers, including which file wins: the first that names a token.
#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

namespace {

// A token as a plain string, or as an object with its flags.
AddedToken read_flags(const JsonNode& node, bool special) {
  AddedToken token;
  token.special = special;
  if (node.is_string()) {
    token.content = node.string();
    return token;
  }
  token.content = node.at("content").string();
  token.single_word = node.boolean_or("single_word", false);
  token.lstrip = node.boolean_or("lstrip", false);
  token.rstrip = node.boolean_or("rstrip", false);
  token.special = node.boolean_or("special", special);
  token.normalized = node.boolean_or("normalized", !token.special);
  return token;
}

// transformers adds the tokens of added_tokens_decoder that a tokenizer.json lacks, under their ids.
void read_added_tokens_decoder(const JsonNode& config, Tokenizer::Parts& parts) {
  const auto list = config.find("added_tokens_decoder");
  if (!list) return;
  if (!list->is_object()) list->fail("is not an object of ids and tokens");
  std::vector<AddedToken> tokens;
  for (const auto& [key, value] : list->raw().items()) {
    const JsonNode node = list->at(key);
    AddedToken token = read_flags(node, false);
    const auto id = parse_int(key);
    if (!id || *id < 0 || *id >= Vocabulary::kMaxIds) node.fail("has a name that is not a token id");
    token.id = static_cast<int32_t>(*id);
    tokens.push_back(std::move(token));
  }
  // Keys of a JSON object are in text order ("10" before "9"), but new tokens are numbered in the order of ids.
  std::ranges::sort(tokens, {}, &AddedToken::id);
  for (AddedToken& token : tokens) {
    const bool known = std::ranges::any_of(parts.added, [&](const AddedToken& other) { return other.id == token.id; });
    if (!known) parts.add(std::move(token), list->where());
  }
}

// Reads a named special token (bos_token, …), adding it if necessary, as transformers does. Returns its id.
std::optional<int32_t> read_named(const JsonNode& config, const char* name, Tokenizer::Parts& parts) {
  const auto node = config.find(name);
  if (!node) return std::nullopt;
  AddedToken token = read_flags(*node, true);
  if (token.content.empty()) return std::nullopt;
  // A token that exists keeps its flags; naming it does not change how it is searched for.
  const std::string content = token.content;
  const bool known =
      std::ranges::any_of(parts.added, [&](const AddedToken& other) { return other.content == content; });
  if (!known) parts.add(std::move(token), node->where());
  return parts.id_of(content);
}

// Further special tokens; extra_special_tokens is the newer name, and may also be an object, which is ignored here.
void read_lists(const JsonNode& config, Tokenizer::Parts& parts) {
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = config.find(name);
    if (!list || !list->is_array()) continue;
    for (size_t i = 0; i < list->array_size(); ++i) {
      AddedToken token = read_flags(list->at(i), true);
      const bool known =
          std::ranges::any_of(parts.added, [&](const AddedToken& other) { return other.content == token.content; });
      if (!known && !token.content.empty()) parts.add(std::move(token), list->where());
    }
  }
}

// An id that an earlier file has named stays.
void read_names(const JsonNode& config, Tokenizer::Parts& parts) {
  const auto set = [&](const char* name, std::optional<int32_t>& id) {
    const auto named = read_named(config, name, parts);
    if (!id) id = named;
  };
  set("bos_token", parts.bos_id);
  set("eos_token", parts.eos_id);
  set("unk_token", parts.unk_id);
  // Their ids are not needed, but they are added if missing, and the order of adding decides the ids.
  for (const char* name : {"sep_token", "cls_token", "mask_token"}) read_named(config, name, parts);
  set("pad_token", parts.pad_id);
  read_lists(config, parts);
}

// Reads one id or a list of them.
std::vector<int32_t> read_ids(const JsonNode& config, const char* name) {
  std::vector<int32_t> ids;
  const auto node = config.find(name);
  if (!node) return ids;
  if (!node->is_array()) return {static_cast<int32_t>(node->integer(-1, INT32_MAX))};
  for (size_t i = 0; i < node->array_size(); ++i)
    ids.push_back(static_cast<int32_t>(node->at(i).integer(-1, INT32_MAX)));
  return ids;
}

// Ids here are only a fallback, except that every eos_token_id ends a generated text.
void read_generation_config(const JsonNode& config, Tokenizer::Parts& parts) {
  const auto set = [&](const char* name, std::optional<int32_t>& id) {
    std::vector<int32_t> ids = read_ids(config, name);
    // Some files write -1 for "none".
    std::erase_if(ids, [](int32_t value) { return value < 0; });
    if (!id && !ids.empty()) id = ids[0];
    return ids;
  };
  set("bos_token_id", parts.bos_id);
  set("pad_token_id", parts.pad_id);
  for (const int32_t id : set("eos_token_id", parts.eos_id)) parts.stop_ids.push_back(id);
}

}  // namespace

Tokenizer::Parts read_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  check<DataError>(fs::is_directory(folder), "{} is not a folder; a tokenizer is a folder with a tokenizer.json",
                   folder.string());
  // In the order of transformers' preference: the fast format first.
  const auto read = [&] {
    if (const auto file = folder / "tokenizer.json"; fs::exists(file))
      return read_tokenizer_json(read_file(file), file.string());
    if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) return read_vocab_and_merges(folder);
    if (const auto file = folder / "tokenizer.model"; fs::exists(file)) return read_sentencepiece(file);
    throw DataError(
        fmt::format("{} has no tokenizer: neither tokenizer.json, nor vocab.json and merges.txt, nor tokenizer.model",
                    folder.string()));
  };
  Tokenizer::Parts parts = read();
  read_special_tokens(folder, parts);
  return parts;
}

void read_special_tokens(const std::filesystem::path& folder, Tokenizer::Parts& parts) {
  // Files are optional; one that exists must be a JSON object.
  const auto with_file = [&](const char* name, const auto& read) {
    const auto path = folder / name;
    if (!std::filesystem::exists(path)) return;
    const nlohmann::json document = parse_json(read_file(path), path.string());
    const JsonNode root(document, path.string());
    if (!root.is_object()) root.fail("is not an object");
    read(root);
  };
  // The order of the files is their priority.
  with_file("tokenizer_config.json", [&](const JsonNode& root) {
    read_added_tokens_decoder(root, parts);
    read_names(root, parts);
  });
  with_file("special_tokens_map.json", [&](const JsonNode& root) { read_names(root, parts); });
  with_file("generation_config.json", [&](const JsonNode& root) { read_generation_config(root, parts); });
}

}  // namespace megalith::tokenizer

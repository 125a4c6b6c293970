// Turns ranks into merges. tiktoken has no list of merges: it joins the two neighbors whose joined bytes have the
// lowest rank. Running that rule on the bytes of a token, with only lower ranks allowed, ends with the two parts that
// the token is made of, which is the merge that a tokenizer.json lists.
#include "megalith/tokenizer/tiktoken.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/base64_internal.h"
#include "megalith/tokenizer/text/byte_alphabet_internal.h"
#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

namespace {

using Json = nlohmann::ordered_json;
using Ranks = std::unordered_map<std::string, int>;

constexpr int kDefaultVocabulary = 131'072, kBytes = 256;

// The two ways of cutting text into words that Megatron knows by name.
constexpr std::string_view kWordsV1 =
    R"--([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)--";
constexpr std::string_view kWordsV2 =
    R"--([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)--"
    R"--(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)--"
    R"--(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)--";

std::vector<std::string> special_tokens(const TiktokenSettings& settings) {
  static const std::vector<std::string> required{"<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};
  std::vector<std::string> tokens = settings.special_tokens.empty() ? required : settings.special_tokens;
  for (const std::string& token : required)
    check<ConfigError>(std::ranges::count(tokens, token) == 1,
                       "tiktoken_special_tokens has {} {} times; it must name each of {} once, as Megatron requires",
                       token, std::ranges::count(tokens, token), fmt::join(required, " "));
  check<ConfigError>(static_cast<int>(tokens.size()) <= settings.num_special_tokens,
                     "tiktoken_special_tokens names {} tokens, but tiktoken_num_special_tokens is {}", tokens.size(),
                     settings.num_special_tokens);
  for (int id = static_cast<int>(tokens.size()); id < settings.num_special_tokens; ++id)
    tokens.push_back(fmt::format("<SPECIAL_{}>", id));
  const std::unordered_set<std::string> distinct(tokens.begin(), tokens.end());
  check<ConfigError>(distinct.size() == tokens.size(), "tiktoken_special_tokens names a token twice");
  return tokens;
}

// Returns the tokens by rank, at most `limit` of them, as bytes.
std::vector<std::string> read_tokens(std::string_view text, const std::string& name, size_t limit) {
  const nlohmann::json list = parse_json(text, name);
  check<DataError>(
      list.is_array() && list.size() >= kBytes,
      "{} is not a tiktoken vocabulary: it must be a list of at least 256 objects with rank, token_bytes and"
      " token_str",
      name);
  std::vector<std::string> tokens;
  for (size_t rank = 0; rank < std::min(limit, list.size()); ++rank) {
    const nlohmann::json& entry = list[rank];
    const bool fits = entry.is_object() && entry.contains("rank") && entry["rank"] == rank &&
                      entry.contains("token_bytes") && entry["token_bytes"].is_string();
    const auto bytes = fits ? decode_base64(entry["token_bytes"].get<std::string>()) : std::nullopt;
    check<DataError>(bytes && !bytes->empty(), "{}: entry {} is not a token of rank {} with token_bytes in base64",
                     name, rank, rank);
    check<DataError>(rank >= kBytes || *bytes == std::string(1, static_cast<char>(rank)),
                     "{}: entry {} is not the byte {}; the first 256 tokens must be the bytes in order", name, rank,
                     rank);
    tokens.push_back(*bytes);
  }
  return tokens;
}

// Returns the two tokens that are joined last when the bytes of a token are joined by ranks below its own; empty if
// joining does not lead to it, so that it is only found as a whole word.
std::vector<std::string> halves_of(const std::string& token, int rank, const Ranks& ranks) {
  std::vector<std::string> parts;
  for (const char byte : token) parts.emplace_back(1, byte);
  while (parts.size() > 2) {
    int best = rank;
    size_t place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == rank) return {};
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  return parts;
}

std::string characters_of(std::string_view bytes) {
  std::string text;
  append_byte_characters(text, bytes);
  return text;
}

// Written by hand: an ordered JSON object searches all its keys for each new one, which is quadratic.
std::string bpe_json(const std::vector<std::string>& special, const std::vector<std::string>& tokens,
                     const std::string& name) {
  Ranks ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    check<DataError>(ranks.emplace(tokens[rank], static_cast<int>(rank)).second,
                     "{}: the token of rank {} is there twice", name, rank);
  std::string text =
      R"({"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":true,"vocab":{)";
  for (size_t id = 0; id < special.size(); ++id) text += Json(special[id]).dump() + ":" + std::to_string(id) + ",\n";
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    text += (rank > 0 ? ",\n" : "") + Json(characters_of(tokens[rank])).dump() + ":" +
            std::to_string(special.size() + rank);
  text += "},\n\"merges\":[";
  bool first = true;
  for (size_t rank = kBytes; rank < tokens.size(); ++rank) {
    const auto halves = halves_of(tokens[rank], static_cast<int>(rank), ranks);
    if (halves.size() != 2) continue;
    text += (first ? "[" : ",\n[") + Json(characters_of(halves[0])).dump() + "," +
            Json(characters_of(halves[1])).dump() + "]";
    first = false;
  }
  return text + "]}";
}

// A special token that the vocabulary also has as text would have two ids.
void check_distinct(const std::vector<std::string>& special, const std::vector<std::string>& tokens,
                    const std::string& name) {
  const std::unordered_set<std::string> names(special.begin(), special.end());
  for (const std::string& token : tokens)
    check<ConfigError>(!names.contains(characters_of(token)),
                       "{} has the token {}, which is also a special token; give it another name in"
                       " tiktoken_special_tokens",
                       name, token);
}

std::string whole_json(const std::vector<std::string>& special, std::string_view words, const std::string& model) {
  Json added = Json::array();
  for (size_t id = 0; id < special.size(); ++id)
    added.push_back({{"id", id},
                     {"content", special[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", words}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json cut{{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  std::string text = "{\"version\":\"1.0\",\n\"truncation\":null,\n\"padding\":null,\n\"normalizer\":null,\n";
  const auto add = [&](const char* key, const Json& value) { text += Json(key).dump() + ":" + value.dump() + ",\n"; };
  add("added_tokens", added);
  add("pre_tokenizer", cut);
  add("post_processor", bytes);
  add("decoder", bytes);
  return text + "\"model\":" + model + "}\n";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> tiktoken_files(std::string_view vocabulary, const std::string& name,
                                                                const TiktokenSettings& settings) {
  check<ConfigError>(settings.pattern == "v1" || settings.pattern == "v2",
                     "tiktoken_pattern is {}; it must be v1 or v2", settings.pattern);
  const int count = settings.vocab_size.value_or(kDefaultVocabulary) - settings.num_special_tokens;
  check<ConfigError>(count >= kBytes, "vocab_size {} leaves {} ids beside {} special tokens; the bytes alone need 256",
                     settings.vocab_size.value_or(kDefaultVocabulary), count, settings.num_special_tokens);
  const std::vector<std::string> special = special_tokens(settings);
  const std::vector<std::string> tokens = read_tokens(vocabulary, name, static_cast<size_t>(count));
  check<ConfigError>(!settings.vocab_size || tokens.size() == static_cast<size_t>(count),
                     "vocab_size is {}, but {} has {} tokens beside {} special ones; use at most {}",
                     settings.vocab_size.value_or(0), name, tokens.size(), special.size(),
                     tokens.size() + special.size());
  check_distinct(special, tokens, name);
  const Json config{{"bos_token", "<s>"},
                    {"eos_token", "</s>"},
                    {"unk_token", "<unk>"},
                    {"pad_token", "<pad>"},
                    {"tokenizer_class", "PreTrainedTokenizerFast"}};
  const std::string_view words = settings.pattern == "v1" ? kWordsV1 : kWordsV2;
  return {{"tokenizer.json", whole_json(special, words, bpe_json(special, tokens, name))},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

}  // namespace megalith::tokenizer

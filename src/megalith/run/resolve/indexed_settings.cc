// Reads the sources of indexed data from options and from the files that options name. A source is a blend: weights
// and prefixes of .bin/.idx pairs, such as "0.3 wiki 0.7 books".
#include "megalith/run/resolve/indexed_settings.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"

namespace megalith::run {

namespace {

// 64 MiB: a million prefixes fit, and a mistaken path to a data file does not fill the memory.
constexpr uint64_t kLongestArgsFile = uint64_t{64} << 20;

// Splits at blanks and line ends.
std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Returns the words of a split in the JSON file: a list of strings and numbers, or one string.
std::vector<std::string> words_of_field(const io::JsonFields& fields, const char* key) {
  const io::Json* value = fields.value(key);
  if (value == nullptr) return {};
  if (value->is_string()) return words_of(value->get<std::string>());
  if (!value->is_array()) fields.refuse(key, "be a list of weights and prefixes, or one string with them");
  std::vector<std::string> words;
  for (const io::Json& word : *value) {
    if (!word.is_string() && !word.is_number()) fields.refuse(key, "hold strings and numbers only");
    words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
  }
  return words;
}

// Returns std::nullopt if there are no words; `option` is the name that messages show.
std::optional<data::Blend> blend_or_nothing(std::span<const std::string> words, const std::string& option) {
  if (words.empty()) return std::nullopt;
  return data::parse_blend(words, option);
}

// The file has the form {"train": ["0.3", "a", …], "valid": "b", "test": []}.
data::PerSplit<std::optional<data::Blend>> read_split_file(const std::string& path) {
  const io::JsonFile file = io::read_json_file(path);
  const io::JsonFields fields = file.fields();
  data::PerSplit<std::optional<data::Blend>> blends;
  for (size_t i = 0; i < data::kSplits; ++i)
    blends[i] = blend_or_nothing(words_of_field(fields, data::kSplitNames[i]),
                                 fmt::format("{}: \"{}\"", file.name(), data::kSplitNames[i]));
  return blends;
}

}  // namespace

data::DataSources data_sources(const config::IndexedDataConfig& indexed) {
  data::DataSources sources;
  sources.mock = indexed.mock_data;
  sources.all = blend_or_nothing(indexed.data_path, "data_path");
  sources.by_split = {blend_or_nothing(indexed.train_data_path, "train_data_path"),
                      blend_or_nothing(indexed.valid_data_path, "valid_data_path"),
                      blend_or_nothing(indexed.test_data_path, "test_data_path")};
  if (indexed.data_args_path)
    sources.all = data::parse_blend(words_of(io::read_text_file(*indexed.data_args_path, kLongestArgsFile)),
                                    fmt::format("data_args_path {}", *indexed.data_args_path));
  if (indexed.per_split_data_args_path) sources.by_split = read_split_file(*indexed.per_split_data_args_path);
  // Files replace what options said; validate() rejects two sources that are both given.
  sources.validate();
  check<ConfigError>(sources.all || sources.mock || !indexed.split,
                     "split cuts data_path; leave it out with other sources of data");
  if (indexed.split) sources.split = *indexed.split;
  return sources;
}

data::IndexedSettings indexed_settings(const config::IndexedDataConfig& indexed) {
  return {.sources = data_sources(indexed),
          .cache_folder = indexed.data_cache_path,
          .eod_mask_loss = indexed.eod_mask_loss,
          .reset_position_ids = indexed.reset_position_ids,
          .reset_attention_mask = indexed.reset_attention_mask};
}

}  // namespace megalith::run

#include "megalith/data/gpt/data_sources.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/gpt/numpy_random.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"

namespace megalith::data {

namespace {

constexpr uint64_t kLongestArgsFile = uint64_t{64} << 20;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// A split's words in the JSON file: a list of strings and numbers, or one string.
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

std::optional<Blend> blend_or_nothing(std::span<const std::string> words, const std::string& option) {
  if (words.empty()) return std::nullopt;
  return parse_blend(words, option);
}

}  // namespace

Blend parse_blend(std::span<const std::string> words, const std::string& option) {
  check<ConfigError>(!words.empty(), "{} names no data; give prefixes of .bin/.idx files", option);
  Blend blend;
  std::vector<double> weights;
  for (size_t i = 0; words.size() % 2 == 0 && i < words.size(); i += 2)
    if (const auto weight = parse_double(trim(words[i]))) weights.push_back(*weight);
  const bool weighted = !weights.empty();
  check<ConfigError>(!weighted || 2 * weights.size() == words.size(),
                     "{}: {} of {} words in front of a prefix are numbers. Give a weight to every prefix, or to none",
                     option, weights.size(), words.size() / 2);
  for (size_t i = weighted ? 1 : 0; i < words.size(); i += weighted ? 2 : 1)
    blend.prefixes.emplace_back(trim(words[i]));
  for (size_t i = 0; i < weights.size(); ++i)
    check<ConfigError>(std::isfinite(weights[i]) && weights[i] > 0,
                       "{}: the weight of {} is {}; it must be more than 0", option, blend.prefixes[i], weights[i]);
  if (weighted) blend.weights = std::move(weights);
  return blend;
}

SplitBounds parse_split(const std::string& text) {
  std::vector<double> parts;
  constexpr std::string_view kDigits = ".0123456789";
  const auto is_digit = [&](char c) { return kDigits.find(c) != std::string_view::npos; };
  bool good = true;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end > at) {
      const auto number = parse_double(std::string_view(text).substr(at, end - at));
      good &= number.has_value();
      parts.push_back(number.value_or(0));
      at = end;
      continue;
    }
    good &= std::string_view(" \t,;:/[]()").find(text[at]) != std::string_view::npos;
    ++at;
  }
  const bool some = std::ranges::any_of(parts, [](double part) { return part > 0; });
  check<ConfigError>(
      good && some && parts.size() <= kSplits,
      "split is \"{}\"; it must be up to three numbers from 0 on, not all 0, for training, evaluation and "
      "test: \"969, 30, 1\"",
      text);
  parts.resize(kSplits, 0.0);
  parts = normalized(parts);
  SplitBounds bounds;
  double begin = 0;
  for (size_t i = 0; i < kSplits; ++i) {
    const double end = begin + parts[i];
    if (end > begin) bounds[i] = {begin, end};
    begin = end;
  }
  return bounds;
}

std::pair<int64_t, int64_t> sequences_of(const std::pair<double, double>& bounds, int64_t count) {
  // Halves go to the even neighbour, as Python's round() does.
  const auto place = [&](double fraction) { return std::llrint(fraction * static_cast<double>(count)); };
  return {place(bounds.first), std::min<int64_t>(place(bounds.second), count)};
}

DataSources read_data_sources(const config::IndexedDataConfig& config) {
  DataSources sources;
  sources.mock = config.mock_data;
  sources.all = blend_or_nothing(config.data_path, "data_path");
  sources.by_split = {blend_or_nothing(config.train_data_path, "train_data_path"),
                      blend_or_nothing(config.valid_data_path, "valid_data_path"),
                      blend_or_nothing(config.test_data_path, "test_data_path")};
  if (config.data_args_path)
    sources.all = parse_blend(words_of(io::read_text_file(*config.data_args_path, kLongestArgsFile)),
                              fmt::format("data_args_path {}", *config.data_args_path));
  if (config.per_split_data_args_path) {
    const io::JsonFile file = io::read_json_file(*config.per_split_data_args_path);
    const io::JsonFields fields = file.fields();
    for (size_t i = 0; i < kSplits; ++i)
      sources.by_split[i] = blend_or_nothing(words_of_field(fields, kSplitNames[i]),
                                             fmt::format("{}: \"{}\"", file.name(), kSplitNames[i]));
  }
  const bool by_split = std::ranges::any_of(sources.by_split, [](const auto& blend) { return blend.has_value(); });
  const int given = (sources.mock ? 1 : 0) + (sources.all ? 1 : 0) + (by_split ? 1 : 0);
  check<ConfigError>(
      given == 1,
      "{} sources of pre-training data are given; give one of data_path, data_args_path, train_data_path "
      "with valid_data_path and test_data_path, per_split_data_args_path, mock_data",
      given);
  return sources;
}

}  // namespace megalith::data

// Parsers of Megatron's options for data. They accept what Megatron accepts, as far as it has one meaning, and refuse
// what it would silently misread.
#include "megalith/data/gpt/data_sources.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/gpt/numpy_random.h"

namespace megalith::data {

// {"0.3", "a", "0.7", "b"} -> prefixes a, b with weights 0.3, 0.7;  {"a", "b"} -> prefixes a, b without
// weights.
Blend parse_blend(std::span<const std::string> words, const std::string& option) {
  check<ConfigError>(!words.empty(), "{} names no data; give prefixes of .bin/.idx files", option);
  Blend blend;
  // Numbers among the words 0, 2, 4, … are weights. Either all of these words are numbers or none is.
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

// As permissive as Megatron, which finds the numbers with a regular expression and ignores what stands between them;
// but only separators may stand there, so that "-5" or "1e3" are not silently misread.
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
  check<ConfigError>(good && some && parts.size() <= kSplits,
                     "split is \"{}\"; it must be up to three numbers >= 0, not all 0, for training, evaluation and "
                     "test, such as \"969, 30, 1\"",
                     text);
  parts.resize(kSplits, 0.0);
  // "969, 30, 1" -> [0, 0.969), [0.969, 0.999), [0.999, 1).
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
  // llrint rounds halves to the even neighbor, as Python's round() does.
  const auto rounded = [&](double fraction) { return std::llrint(fraction * static_cast<double>(count)); };
  return {rounded(bounds.first), std::min<int64_t>(rounded(bounds.second), count)};
}

// Options for several sources would silently override one another.
void DataSources::validate() const {
  const bool some_split = std::ranges::any_of(by_split, [](const auto& blend) { return blend.has_value(); });
  const int given = (mock ? 1 : 0) + (all ? 1 : 0) + (some_split ? 1 : 0);
  check<ConfigError>(
      given == 1,
      "{} sources of pre-training data are given; give one of data_path, data_args_path, train_data_path "
      "with valid_data_path and test_data_path, per_split_data_args_path, mock_data",
      given);
}

}  // namespace megalith::data

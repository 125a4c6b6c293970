// The strategies of LLaMA-Factory (those of Hugging Face's `datasets`), as a picker that sees one record at a time: it
// serves tokenized data, where sizes are known, and streams, where a dataset ends when it ends.
#include "megalith/data/sft/mix.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::data {

using config::MixStrategy;

// {"1", "3"} -> {0.25, 0.75}.
std::vector<double> parse_probabilities(const std::vector<std::string>& words, size_t datasets) {
  std::vector<double> values;
  for (const std::string& word : words) {
    const auto value = parse_double(trim(word));
    check<ConfigError>(value && *value > 0 && *value < 1e300,
                       "interleave_probs has \"{}\"; it must be a positive number", word);
    values.push_back(*value);
  }
  check<ConfigError>(values.empty() || values.size() == datasets,
                     "interleave_probs has {} numbers for {} datasets; give one per dataset", values.size(), datasets);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
  return values;
}

DatasetPicker::DatasetPicker(size_t datasets, const MixOptions& options)
    : options_(options),
      exhausted_(datasets, false),
      random_(mix_seed(options.seed, 0x6D6978)) {}  // "mix": independent of other uses of the seed

bool DatasetPicker::ended() const {
  const auto is_set = [](bool value) { return value; };
  return options_.strategy == MixStrategy::kInterleaveUnder ? std::ranges::any_of(exhausted_, is_set)
                                                            : std::ranges::all_of(exhausted_, is_set);
}

// The last dataset gets what rounding leaves of the unit interval.
size_t DatasetPicker::draw() {
  const double at = random_.unit();
  double sum = 0;
  for (size_t d = 0; d + 1 < exhausted_.size(); ++d)
    if (at < (sum += options_.probabilities[d])) return d;
  return exhausted_.size() - 1;
}

// The end is checked only between rounds if datasets take turns, so that each contributes equally.
std::optional<size_t> DatasetPicker::next() {
  const bool in_turn = options_.probabilities.empty();
  if (options_.strategy == MixStrategy::kConcat) {
    while (turn_ < exhausted_.size() && exhausted_[turn_]) ++turn_;
    return turn_ < exhausted_.size() ? std::optional(turn_) : std::nullopt;
  }
  while (true) {  // interleave_once may have to skip exhausted datasets
    // Random draws have no rounds, so every draw may be the last.
    const bool round_complete = !in_turn || turn_ % exhausted_.size() == 0;
    if (round_complete && ended()) return std::nullopt;
    const size_t dataset = in_turn ? turn_++ % exhausted_.size() : draw();
    if (options_.strategy != MixStrategy::kInterleaveOnce || !exhausted_[dataset]) return dataset;
  }
}

void DatasetPicker::exhausted(size_t dataset) { exhausted_.at(dataset) = true; }

}  // namespace megalith::data

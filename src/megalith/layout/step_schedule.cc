// Parses "0:768 250B:1536" into batch sizes by consumed samples. Thresholds are tokens when a sequence length is
// known, as in the reference, and are divided by it at once, so that everything after the parser counts samples.
#include "megalith/layout/step_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::layout {
namespace {

constexpr std::string_view kHowTo =
    "Write step_batch_size_schedule as THRESHOLD:BATCH pairs, thresholds increasing from 0, e.g. '0:768 250B:1536'";

// Returns 0 for a character that is not a suffix. B is a billion, as in "7B".
double factor_of_suffix(char suffix) {
  switch (suffix) {
    case 'k':
      return 1e3;
    case 'm':
      return 1e6;
    case 'b':
      return 1e9;
    case 't':
      return 1e12;
    default:
      return 0;
  }
}

// Parses "1536", "250B", "1.5K"; std::nullopt unless the result is a whole number.
std::optional<int64_t> parse_amount(std::string_view text) {
  constexpr double kLargest = 9e15;   // doubles represent whole numbers exactly up to here
  constexpr double kRounding = 1e-3;  // 250.3 * 1e9 need not be whole to the last bit
  std::string number = to_lower(trim(text));
  double factor = 1;
  if (!number.empty() && factor_of_suffix(number.back()) > 0) {
    factor = factor_of_suffix(number.back());
    number.pop_back();
  }
  const std::optional<double> value = parse_double(number);
  if (!value) return std::nullopt;
  const double amount = *value * factor;
  if (!(std::abs(amount) <= kLargest) || std::abs(amount - std::round(amount)) > kRounding) return std::nullopt;
  return std::llround(amount);
}

// Parses one THRESHOLD:BATCH pair; a missing or invalid number becomes one that the check rejects.
StepSchedule::Step parse_step(const std::string& entry, std::optional<int64_t> seq_length) {
  const size_t colon = entry.find(':');
  const int64_t threshold = parse_amount(entry.substr(0, colon)).value_or(-1);
  const int64_t batch = colon == std::string::npos ? 0 : parse_amount(entry.substr(colon + 1)).value_or(0);
  check<ConfigError>(threshold >= 0 && batch > 0,
                     "step_batch_size_schedule has the entry '{}'; a threshold must be a whole number >= 0 and a batch "
                     "size one > 0, each optionally followed by K, M, B or T. {}",
                     entry, kHowTo);
  return {seq_length ? threshold / *seq_length : threshold, batch};
}

}  // namespace

// Thresholds are compared in samples, since two token counts may round to the same number of samples.
StepSchedule StepSchedule::parse(std::string_view text, std::optional<int64_t> seq_length) {
  check<ConfigError>(!seq_length || *seq_length > 0, "seq_length is {}; it must be positive", seq_length.value_or(0));
  // Entries are separated by blanks or commas: "0:768,250B:1536" is accepted, too.
  std::string blanks(text);
  std::replace(blanks.begin(), blanks.end(), ',', ' ');
  std::vector<Step> steps;
  for (const std::string& entry : split(blanks, ' ')) {
    if (!trim(entry).empty()) steps.push_back(parse_step(entry, seq_length));
  }
  check<ConfigError>(!steps.empty(), "step_batch_size_schedule is empty. {}", kHowTo);
  check<ConfigError>(steps[0].from_samples == 0,
                     "step_batch_size_schedule '{}' begins at {} samples; the first threshold must be 0. {}", text,
                     steps[0].from_samples, kHowTo);
  for (size_t i = 1; i < steps.size(); ++i) {
    check<ConfigError>(steps[i].from_samples > steps[i - 1].from_samples,
                       "step_batch_size_schedule '{}': the threshold of entry {} is {} samples, which is not more than "
                       "the {} before it{}. {}",
                       text, i + 1, steps[i].from_samples, steps[i - 1].from_samples,
                       seq_length ? fmt::format(" (tokens divided by seq_length {})", *seq_length) : "", kHowTo);
  }
  return StepSchedule(std::move(steps));
}

int64_t StepSchedule::batch_size_at(int64_t consumed_samples) const {
  // The entry before the first threshold beyond `consumed_samples`.
  const auto next = std::upper_bound(steps_.begin(), steps_.end(), consumed_samples,
                                     [](int64_t consumed, const Step& step) { return consumed < step.from_samples; });
  return next == steps_.begin() ? steps_.front().global_batch_size : std::prev(next)->global_batch_size;
}

}  // namespace megalith::layout

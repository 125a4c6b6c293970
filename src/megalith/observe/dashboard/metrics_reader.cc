// A run of a million steps has a file of hundreds of megabytes. It is read once, in the order of its lines, and each
// number goes straight into a series of bounded size, so that neither the text nor the points pile up. The cost per
// number is what matters: MetricsLine parses without allocating, and series_at() guesses the series from its place.
#include "megalith/observe/dashboard/metrics_reader.h"

#include <algorithm>
#include <cmath>

namespace megalith::observe {

namespace {

constexpr double kMostSteps = 9007199254740992.0;  // 2^53: whole numbers are exact below

}  // namespace

bool MetricsReader::update() {
  const auto change = tail_.poll([this](std::string_view line) { add(line); }, [this] { clear(); });
  return change != LineTail::Change::kNone;
}

void MetricsReader::clear() {
  series_.clear();
  index_.clear();
  guesses_.clear();
  lines_ = malformed_ = left_out_ = 0;
}

const MetricsReader::Series* MetricsReader::find(std::string_view name) const {
  const auto entry = index_.find(std::string(name));
  return entry == index_.end() ? nullptr : &series_[entry->second];
}

// Tries the series of the same place in the line before, which saves a hash lookup per value. New names are taken until
// kMostSeries: a file with a fresh name on each line must not fill the memory.
DownsampledSeries* MetricsReader::series_at(size_t place, std::string_view name) {
  if (place < guesses_.size() && guesses_[place] < series_.size() && series_[guesses_[place]].name == name)
    return &series_[guesses_[place]].values;
  const auto entry = index_.find(std::string(name));
  if (entry == index_.end() && (series_.size() == kMostSeries || name.size() > kMostNameBytes)) return nullptr;
  const size_t number = entry == index_.end() ? series_.size() : entry->second;
  if (entry == index_.end()) {
    series_.push_back({std::string(name), DownsampledSeries()});
    index_.emplace(name, number);
  }
  if (guesses_.size() <= place) guesses_.resize(place + 1, SIZE_MAX);
  guesses_[place] = number;
  return &series_[number].values;
}

// A line without a usable step has no place on the x axis.
void MetricsReader::add(std::string_view line) {
  if (!line_.parse(line)) {
    ++malformed_;
    return;
  }
  const auto& entries = line_.entries();
  const auto step = std::ranges::find(entries, "step", &MetricsLine::Entry::first);
  if (step == entries.end() || !(std::abs(step->second) < kMostSteps)) {
    ++malformed_;
    return;
  }
  ++lines_;
  const double x = step->second;
  for (size_t place = 0; place < entries.size(); ++place) {
    const auto& [name, value] = entries[place];
    if (name == "step") continue;
    if (DownsampledSeries* series = series_at(place, name))
      series->add(x, value);
    else
      ++left_out_;
  }
}

}  // namespace megalith::observe

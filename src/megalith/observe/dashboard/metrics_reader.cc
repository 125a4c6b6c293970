// A run of a million steps has a file of hundreds of megabytes. It is read once, in the order of its lines, and each
// number goes straight into a series of bounded size, so that neither the text nor the points pile up. The cost per
// number is what matters: MetricsLine parses without allocating, and series_at() guesses the series from its place.
#include "megalith/observe/dashboard/metrics_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace megalith::observe {

namespace {

constexpr double kMostSteps = 9007199254740992.0;  // 2^53: whole numbers are exact below

// Returns the step of a line that was parsed; std::nullopt if it has none that can be an x.
std::optional<double> step_of(const MetricsLine& line) {
  const auto& entries = line.entries();
  const auto step = std::ranges::find(entries, "step", &MetricsLine::Entry::first);
  if (step == entries.end() || !(std::abs(step->second) < kMostSteps)) return std::nullopt;
  return step->second;
}

}  // namespace

void MetricCurves::clear() {
  series_.clear();
  index_.clear();
  guesses_.clear();
}

const MetricCurves::Series* MetricCurves::find(std::string_view name) const {
  const auto entry = index_.find(std::string(name));
  return entry == index_.end() ? nullptr : &series_[entry->second];
}

// Tries the series of the same place in the line before, which saves a hash lookup per value. New names are taken until
// kMostSeries: a file with a fresh name on each line must not fill the memory.
DownsampledSeries* MetricCurves::series_at(size_t place, std::string_view name) {
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

int64_t MetricCurves::add(double step, const std::vector<MetricsLine::Entry>& entries) {
  int64_t left_out = 0;
  for (size_t place = 0; place < entries.size(); ++place) {
    const auto& [name, value] = entries[place];
    if (name == "step") continue;
    if (DownsampledSeries* series = series_at(place, name))
      series->add(step, value);
    else
      ++left_out;
  }
  return left_out;
}

void MetricCurves::append_json(std::string& to) const {
  to += '{';
  for (const Series& series : series_) {
    if (&series != series_.data()) to += ',';
    to += nlohmann::json(series.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ":";
    series.values.append_json(to);
  }
  to += '}';
}

bool MetricsReader::update() {
  offset_ = tail_.bytes();
  const auto change = tail_.poll([this](std::string_view line) { add(line); }, [this] { clear(); });
  return change != LineTail::Change::kNone;
}

void MetricsReader::clear() {
  curves_.clear();
  marks_.clear();
  offset_ = 0;
  lines_ = malformed_ = left_out_ = 0;
}

// A line without a usable step has no place on the x axis.
void MetricsReader::add(std::string_view line) {
  const uint64_t offset = std::exchange(offset_, offset_ + line.size() + 1);
  const auto step = line_.parse(line) ? step_of(line_) : std::nullopt;
  if (!step) {
    ++malformed_;
    return;
  }
  if (lines_++ % kMarkEvery == 0) marks_.push_back({*step, offset});
  left_out_ += curves_.add(*step, line_.entries());
}

// From the last mark before `from`: lines of one step may be on both sides of a mark. A line that LineTail passed on in
// pieces makes later offsets too small, so that reading begins earlier: slower, but with the same result.
MetricCurves MetricsReader::part(double from, double to) const {
  MetricCurves curves;
  const auto mark = std::ranges::lower_bound(marks_, from, {}, &Mark::step);
  const uint64_t begin = mark == marks_.begin() ? 0 : std::prev(mark)->offset;
  MetricsLine parser;
  read_lines(folder_, kName, begin, tail_.bytes(), [&](std::string_view line) {
    const auto step = parser.parse(line) ? step_of(parser) : std::nullopt;
    if (step && *step >= from && *step <= to) curves.add(*step, parser.entries());
    return !step || *step <= to;
  });
  return curves;
}

}  // namespace megalith::observe

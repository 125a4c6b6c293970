// MetricsReader: metrics.jsonl of a run that may still go on, as curves.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "megalith/observe/dashboard/downsampled_series.h"
#include "megalith/observe/dashboard/line_tail.h"
#include "megalith/observe/dashboard/metrics_line.h"

namespace megalith::observe {

// One pass over the file, then over what is appended; memory does not grow with the number of lines. One thread.
class MetricsReader {
 public:
  struct Series {
    std::string name;
    DownsampledSeries values;
  };
  // The run's folder, canonical.
  explicit MetricsReader(std::filesystem::path folder) : tail_(std::move(folder), "metrics.jsonl") {}

  // Takes what is new; whether anything is. Throws DataError (see InsideFile).
  bool update();

  // In order of first appearance; "step", which is x, is not among them.
  const std::vector<Series>& series() const { return series_; }
  const Series* find(std::string_view name) const;
  int64_t lines() const { return lines_; }          // with a step
  int64_t malformed() const { return malformed_; }  // that were skipped: no JSON object, or without a step
  int64_t left_out() const { return left_out_; }    // values whose series were too many, or had too long a name
  const LineTail& file() const { return tail_; }

  static constexpr size_t kMostSeries = 400;
  static constexpr size_t kMostNameBytes = 200;

 private:
  void clear();
  void add(std::string_view line);
  // The series of the `place`-th entry of a line; nullptr: none. Lines are alike, so the answer is nearly always the
  // one that was given for this place before.
  DownsampledSeries* series_at(size_t place, std::string_view name);

  LineTail tail_;
  MetricsLine line_;
  std::vector<Series> series_;
  std::unordered_map<std::string, size_t> index_;  // of series_ by name
  std::vector<size_t> guesses_;                    // by place in the line
  int64_t lines_ = 0, malformed_ = 0, left_out_ = 0;
};

}  // namespace megalith::observe

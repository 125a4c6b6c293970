// MetricsReader: reads metrics.jsonl of a run that may still be running, as curves.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "megalith/observe/dashboard/downsampled_series.h"
#include "megalith/observe/dashboard/line_tail.h"
#include "megalith/observe/dashboard/metrics_line.h"

namespace megalith::observe {

// Makes one pass over the file, then over what is appended; memory does not grow with the number of lines. One thread.
// A file that is cut or replaced (a resumed run drops the lines of steps that it repeats) is read again from its start.
class MetricsReader {
 public:
  // One curve. Points beyond the capacity of DownsampledSeries are merged with their neighbors.
  struct Series {
    std::string name;
    DownsampledSeries values;
  };
  // `folder` is the run's folder, canonical.
  explicit MetricsReader(std::filesystem::path folder) : tail_(std::move(folder), "metrics.jsonl") {}

  // Reads what is new; returns whether there was anything. Throws DataError (see InsideFile).
  bool update();

  // Returns the curves in order of first appearance, without "step", which is x.
  const std::vector<Series>& series() const { return series_; }
  // Returns the curve of that name, or nullptr. Valid until the next update().
  const Series* find(std::string_view name) const;
  // Counts since the file was last read from its start.
  int64_t lines() const { return lines_; }          // lines with a step
  int64_t malformed() const { return malformed_; }  // lines that were skipped: not a JSON object, or without a step
  int64_t left_out() const { return left_out_; }    // values of series beyond kMostSeries, or with too long a name
  const LineTail& file() const { return tail_; }

  // Bounds for files that name a new metric on each line, or a very long one.
  static constexpr size_t kMostSeries = 400;
  static constexpr size_t kMostNameBytes = 200;

 private:
  // clear() forgets everything before the file is read again; add() takes one line.
  void clear();
  void add(std::string_view line);
  // Returns the series of the `place`-th entry of a line, or nullptr for none. Lines are alike, so the answer is nearly
  // always the same as for this place in the line before.
  DownsampledSeries* series_at(size_t place, std::string_view name);

  LineTail tail_;
  MetricsLine line_;
  std::vector<Series> series_;
  std::unordered_map<std::string, size_t> index_;  // index into series_ by name
  std::vector<size_t> guesses_;                    // index into series_ by place in the line
  int64_t lines_ = 0, malformed_ = 0, left_out_ = 0;
};

}  // namespace megalith::observe

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

// The curves that lines of metrics.jsonl make.
class MetricCurves {
 public:
  // One curve. Points beyond the capacity of DownsampledSeries are merged with their neighbors.
  struct Series {
    std::string name;
    DownsampledSeries values;
  };

  // Adds the numbers of a line at this step. Returns how many were left out: of series beyond kMostSeries, or with too
  // long a name.
  int64_t add(double step, const std::vector<MetricsLine::Entry>& entries);
  void clear();

  // Returns the curves in order of first appearance, without "step", which is x.
  const std::vector<Series>& series() const { return series_; }
  // Returns the curve of that name, or nullptr. Valid until the next add().
  const Series* find(std::string_view name) const;
  // Appends {name: DownsampledSeries}.
  void append_json(std::string& to) const;

  // Bounds for files that name a new metric on each line, or a very long one.
  static constexpr size_t kMostSeries = 400;
  static constexpr size_t kMostNameBytes = 200;

 private:
  // Returns the series of the `place`-th entry of a line, or nullptr for none. Lines are alike, so the answer is nearly
  // always the same as for this place in the line before.
  DownsampledSeries* series_at(size_t place, std::string_view name);

  std::vector<Series> series_;
  std::unordered_map<std::string, size_t> index_;  // index into series_ by name
  std::vector<size_t> guesses_;                    // index into series_ by place in the line
};

// Makes one pass over the file, then over what is appended; memory does not grow with the number of lines, but for 16
// bytes per 1,024 of them. One thread. A file that is cut or replaced (a resumed run drops the lines of steps that it
// repeats) is read again from its start.
class MetricsReader {
 public:
  using Series = MetricCurves::Series;
  // `folder` is the run's folder, canonical.
  explicit MetricsReader(std::filesystem::path folder) : folder_(std::move(folder)), tail_(folder_, kName) {}

  // Reads what is new; returns whether there was anything. Throws DataError (see InsideFile).
  bool update();

  // The curves of the whole file; a curve that was found is valid until the next update().
  const MetricCurves& curves() const { return curves_; }
  const std::vector<Series>& series() const { return curves_.series(); }
  const Series* find(std::string_view name) const { return curves_.find(name); }

  // Reads the lines of steps `from` to `to` (both included) again, as curves of their own: a part of a long run that
  // is exact, or at least finer than in curves(). Reads that part of the file only, which relies on steps that ascend
  // from line to line, as a run writes them. Throws DataError (see InsideFile).
  MetricCurves part(double from, double to) const;

  // Counts since the file was last read from its start.
  int64_t lines() const { return lines_; }          // lines with a step
  int64_t malformed() const { return malformed_; }  // lines that were skipped: not a JSON object, or without a step
  int64_t left_out() const { return left_out_; }    // values of series beyond kMostSeries, or with too long a name
  const LineTail& file() const { return tail_; }

  static constexpr size_t kMostSeries = MetricCurves::kMostSeries;
  static constexpr size_t kMostNameBytes = MetricCurves::kMostNameBytes;

 private:
  static constexpr const char* kName = "metrics.jsonl";
  // Where a line begins, of every kMarkEvery-th: the way into the middle of the file.
  struct Mark {
    double step;
    uint64_t offset;
  };
  static constexpr int64_t kMarkEvery = 1024;

  // clear() forgets everything before the file is read again; add() takes one line.
  void clear();
  void add(std::string_view line);

  std::filesystem::path folder_;
  LineTail tail_;
  MetricsLine line_;
  MetricCurves curves_;
  std::vector<Mark> marks_;
  uint64_t offset_ = 0;  // first byte of the line that add() takes next
  int64_t lines_ = 0, malformed_ = 0, left_out_ = 0;
};

}  // namespace megalith::observe

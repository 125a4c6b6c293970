// Readers of samples.jsonl and histograms.jsonl of a run that may still be running.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/observe/dashboard/line_tail.h"

namespace megalith::observe {

// Records of a run in the order of their steps, thinned out when there are too many: every second one goes, the newest
// stays.
template <typename Record>
class ThinnedRecords {
 public:
  static constexpr size_t kMostRecords = 200;
  static constexpr size_t kMostBytes = size_t{1} << 26;

  // `bytes` is the memory that the record takes.
  void add(Record record, size_t bytes) {
    records_.push_back(std::move(record));
    sizes_.push_back(bytes);
    bytes_ += bytes;
    while (records_.size() > 2 && (records_.size() > kMostRecords || bytes_ > kMostBytes)) thin();
  }
  void clear() { *this = {}; }
  const std::vector<Record>& all() const { return records_; }

 private:
  void thin() {
    ThinnedRecords kept;
    // Counted from the newest, which stays.
    for (size_t i = (records_.size() - 1) % 2; i < records_.size(); i += 2) {
      kept.records_.push_back(std::move(records_[i]));
      kept.sizes_.push_back(sizes_[i]);
      kept.bytes_ += sizes_[i];
    }
    *this = std::move(kept);
  }

  std::vector<Record> records_;
  std::vector<size_t> sizes_;
  size_t bytes_ = 0;
};

// Texts of the model and of its training data. One thread. Lines that are not samples are counted and skipped.
class SamplesReader {
 public:
  // `folder` is the run's folder, canonical.
  explicit SamplesReader(std::filesystem::path folder) : tail_(std::move(folder), "samples.jsonl") {}

  // Reads what is new; returns whether there was anything. Throws DataError (see InsideFile).
  bool update();

  // Returns the steps with samples as a JSON list.
  std::string steps_json() const;
  size_t size() const { return records_.all().size(); }
  // Returns a line of the file as JSON; std::nullopt when there is no such record.
  std::optional<std::string> json(size_t record) const;
  int64_t malformed() const { return malformed_; }

 private:
  struct Line {
    int64_t step = 0;
    std::string text;
  };
  void add(std::string_view line);

  LineTail tail_;
  ThinnedRecords<Line> records_;
  int64_t malformed_ = 0;
};

// Histograms of weights and gradients. One thread. A row is one part of the model, of one of the two kinds.
class HistogramsReader {
 public:
  explicit HistogramsReader(std::filesystem::path folder) : tail_(std::move(folder), "histograms.jsonl") {}

  bool update();

  std::string steps_json() const;
  size_t rows() const { return rows_.size(); }
  // Returns an overview, the root mean square of each row at each step (from the middles of the bins; null where it has
  // none):
  //   {"steps":[10,20],"rows":[{"kind":"weights","part":"layers.0.attention","size":[0.02,0.021]},…]}
  std::string summary_json() const;
  // Returns all histograms of a row, as in the file: {"kind":…,"part":…,"steps":[…],"histograms":[{…} or null,…]};
  // std::nullopt when there is no such row.
  std::optional<std::string> row_json(size_t row) const;
  int64_t malformed() const { return malformed_; }

 private:
  struct Row {
    std::string kind, part;
  };
  struct Cell {
    std::string text = "null";  // the histogram as JSON
    std::optional<double> size{};
  };
  struct Record {
    int64_t step = 0;
    std::vector<Cell> cells;  // by row; may be shorter than rows_
  };
  void clear();
  void add(std::string_view line);
  size_t row_of(const std::string& kind, const std::string& part);

  LineTail tail_;
  std::vector<Row> rows_;
  std::map<std::string, size_t> row_numbers_;  // by kind and part
  ThinnedRecords<Record> records_;
  int64_t malformed_ = 0;
};

}  // namespace megalith::observe

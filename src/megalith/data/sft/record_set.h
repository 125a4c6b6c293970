// RecordSet: random access to the records of several datasets, and the order that options give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/sft/dataset_info.h"
#include "megalith/data/sft/mix.h"
#include "megalith/data/sft/record_file.h"

namespace megalith::data {

// A record of a dataset. Numbers count through all files of the dataset.
struct RecordRef {
  int32_t dataset = 0;
  int64_t record = 0;
  bool operator==(const RecordRef&) const = default;
};

// Options of RecordSet::select. The order and number of records follow from these and from the sizes of the datasets
// alone.
struct SelectionOptions {
  std::optional<int64_t> max_samples;  // keep only the first records of each dataset; std::nullopt: all
  MixOptions mix;
};

// Keeps the files open. Immutable and thread-safe. Construction reads every file once to find its records; afterwards
// each is read by its place.
class RecordSet {
 public:
  // Throws a DataError for a dataset without records. Parquet and Arrow files keep their rows in `scratch_folder`, as
  // RecordFile says. `shows_progress` is for one rank.
  explicit RecordSet(std::vector<DatasetDescription> datasets, const std::filesystem::path& scratch_folder = {},
                     bool shows_progress = false);

  const std::vector<DatasetDescription>& datasets() const { return datasets_; }
  // The number of records of a dataset, one of its records, and the "file:line" of that.
  int64_t size(size_t dataset) const { return sizes_.at(dataset); }
  io::Json record(const RecordRef& ref) const;
  std::string place(const RecordRef& ref) const;

  // Returns num_samples records of each dataset, at most max_samples of these, mixed. The order depends only on the
  // options and the sizes.
  std::vector<RecordRef> select(const SelectionOptions& options) const;

 private:
  // Returns the file of a record, and sets `index` to its number there.
  const RecordFile& locate(const RecordRef& ref, int64_t& index) const;

  std::vector<DatasetDescription> datasets_;
  std::vector<std::vector<RecordFile>> files_;
  std::vector<int64_t> sizes_;
};

// Returns the sizes of all files together, for progress; files that cannot be read, which the reader refuses, count 0.
int64_t bytes_of_files(const std::vector<DatasetDescription>& datasets);

// The result of split_records. No record is in both parts.
struct RecordSplit {
  std::vector<RecordRef> train;
  std::vector<RecordRef> validation;
};
// Holds out `val_size` random records for validation: a number if >= 1, otherwise a fraction (rounded up). Both parts
// keep their order. Throws a ConfigError if nothing would be left to train on.
RecordSplit split_records(const std::vector<RecordRef>& records, double val_size, uint64_t seed);

}  // namespace megalith::data

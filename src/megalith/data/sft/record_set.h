// The records of several datasets by number, and the order that options give them.
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

struct SelectionOptions {
  std::optional<int64_t> max_samples;  // records kept of each dataset, the first ones
  MixOptions mix;
};

// The files stay open. Immutable; any number of threads.
class RecordSet {
 public:
  // Throws DataError for a dataset without records.
  explicit RecordSet(std::vector<DatasetDescription> datasets);

  const std::vector<DatasetDescription>& datasets() const { return datasets_; }
  int64_t size(size_t dataset) const { return sizes_.at(dataset); }
  io::Json record(const RecordRef& ref) const;
  std::string place(const RecordRef& ref) const;

  // num_samples of each dataset, max_samples of that, then mixed. The order depends on the options alone.
  std::vector<RecordRef> select(const SelectionOptions& options) const;

 private:
  const RecordFile& locate(const RecordRef& ref, int64_t& index) const;

  std::vector<DatasetDescription> datasets_;
  std::vector<std::vector<RecordFile>> files_;
  std::vector<int64_t> sizes_;
};

struct RecordSplit {
  std::vector<RecordRef> train;
  std::vector<RecordRef> validation;
};
// Takes `val_size` records out at random: a number from 1 on, a fraction below (rounded up). Both parts keep their
// order. Throws ConfigError when nothing would be left.
RecordSplit split_records(const std::vector<RecordRef>& records, double val_size, uint64_t seed);

}  // namespace megalith::data

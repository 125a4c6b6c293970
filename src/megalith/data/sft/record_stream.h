// RecordStream: sequential access to mixed records with bounded memory, for `streaming`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/random.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/data/sft/mix.h"
#include "megalith/data/sft/record_file.h"

namespace megalith::data {

// A record and its position. `dataset`, `file` and `line` are for messages, and tell parse_record what it reads.
struct StreamedRecord {
  std::string text;  // not parsed yet
  RecordFormat format = RecordFormat::kJson;
  size_t dataset = 0;
  size_t file = 0;  // index into the files of the dataset
  int64_t line = 1;
};

// Reads the files of one dataset from the first record to the last. Not thread-safe. Opens one file at a time.
class DatasetReader {
 public:
  // `dataset` must outlive this object; `number` is its place in the list, for StreamedRecord::dataset.
  DatasetReader(const DatasetDescription& dataset, size_t number);
  // Returns false at the end.
  bool next(StreamedRecord& record);

 private:
  const DatasetDescription& dataset_;
  size_t number_;
  size_t file_ = 0;
  std::optional<RecordScanner> scanner_;
};

// Mixes several datasets and shuffles the result in a buffer: each record returned is drawn at random from the buffer,
// which is then refilled. Not thread-safe. Memory is bounded by the buffer and one record per dataset. Datasets that
// the mix may draw again are opened again.
class RecordStream {
 public:
  // `datasets` must outlive this object. A buffer of 0 or 1 records does not shuffle. The first `left_out` mixed
  // records are skipped.
  RecordStream(const std::vector<DatasetDescription>& datasets, const MixOptions& mix, int64_t buffer_size,
               uint64_t shuffle_seed, int64_t left_out = 0);
  bool next(StreamedRecord& record);

 private:
  // A dataset with its next record read ahead, so that it is known whether a record is the last one when it is taken.
  struct Source {
    std::unique_ptr<DatasetReader> reader;
    StreamedRecord ahead;
  };
  // Starts a dataset from its first record; throws a DataError if it has none.
  void open(size_t dataset);
  // Returns the next record before shuffling; false at the end of the mix.
  bool next_mixed(StreamedRecord& record);

  const std::vector<DatasetDescription>& datasets_;
  DatasetPicker picker_;
  std::vector<Source> sources_;
  size_t buffer_size_;
  std::vector<StreamedRecord> buffer_;
  RandomStream random_;
};

}  // namespace megalith::data

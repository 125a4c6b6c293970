// Records one after another, with bounded memory: what `streaming` reads.
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

// A record and where it stands.
struct StreamedRecord {
  std::string text;  // not parsed yet
  RecordFormat format = RecordFormat::kJson;
  size_t dataset = 0;
  size_t file = 0;  // of the dataset
  int64_t line = 1;
};

// The files of one dataset from the first record to the last. One thread.
class DatasetReader {
 public:
  DatasetReader(const DatasetDescription& dataset, size_t number);
  // False at the end.
  bool next(StreamedRecord& record);

 private:
  const DatasetDescription& dataset_;
  size_t number_;
  size_t file_ = 0;
  std::optional<RecordScanner> scanner_;
};

// Several datasets, mixed; then shuffled in a buffer: a record leaves it when a new one takes its place. One thread.
class RecordStream {
 public:
  // `datasets` outlives this. A buffer of 0 or 1 records: not shuffled. The first `left_out` mixed records do not
  // appear.
  RecordStream(const std::vector<DatasetDescription>& datasets, const MixOptions& mix, int64_t buffer_size,
               uint64_t shuffle_seed, int64_t left_out = 0);
  bool next(StreamedRecord& record);

 private:
  // A dataset and its next record: that it is the last one is known when it is taken.
  struct Source {
    std::unique_ptr<DatasetReader> reader;
    StreamedRecord ahead;
  };
  void open(size_t dataset);
  bool next_mixed(StreamedRecord& record);

  const std::vector<DatasetDescription>& datasets_;
  DatasetPicker picker_;
  std::vector<Source> sources_;
  size_t buffer_size_;
  std::vector<StreamedRecord> buffer_;
  RandomStream random_;
};

}  // namespace megalith::data

// Three stages, each with bounded memory: readers (one record ahead per dataset), the mix (DatasetPicker), and a buffer
// of buffer_size records from which each result is drawn at random. All ranks run the same stages with the same seeds,
// so they see the same records in the same order without talking.
#include "megalith/data/sft/record_stream.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::data {

DatasetReader::DatasetReader(const DatasetDescription& dataset, size_t number) : dataset_(dataset), number_(number) {}

bool DatasetReader::next(StreamedRecord& record) {
  while (file_ < dataset_.files.size()) {
    if (!scanner_) scanner_.emplace(dataset_.files[file_]);
    RecordPlace place;
    if (scanner_->next(record.text, place)) {
      record.format = scanner_->format();
      record.dataset = number_;
      record.file = file_;
      record.line = place.line;
      return true;
    }
    scanner_.reset();
    ++file_;
  }
  return false;
}

RecordStream::RecordStream(const std::vector<DatasetDescription>& datasets, const MixOptions& mix, int64_t buffer_size,
                           uint64_t shuffle_seed, int64_t left_out)
    : datasets_(datasets),
      picker_(datasets.size(), mix),
      sources_(datasets.size()),
      buffer_size_(static_cast<size_t>(std::max<int64_t>(buffer_size, 1))),
      random_(shuffle_seed) {
  for (size_t d = 0; d < datasets.size(); ++d) open(d);
  // Before shuffling: what is left out is the same in every epoch.
  StreamedRecord unused;
  while (left_out-- > 0 && next_mixed(unused)) {
  }
}

void RecordStream::open(size_t dataset) {
  Source& source = sources_[dataset];
  source.reader = std::make_unique<DatasetReader>(datasets_[dataset], dataset);
  check<DataError>(source.reader->next(source.ahead), "dataset {} has no records ({})", datasets_[dataset].name,
                   datasets_[dataset].files.front().string());
}

// Reads one record ahead, because the picker must know at once that a dataset is exhausted.
bool RecordStream::next_mixed(StreamedRecord& record) {
  const auto dataset = picker_.next();
  if (!dataset) return false;
  Source& source = sources_[*dataset];
  record = std::move(source.ahead);
  if (!source.reader->next(source.ahead)) {
    picker_.exhausted(*dataset);
    open(*dataset);  // interleave_over may draw it again
  }
  return true;
}

// As Hugging Face's IterableDataset.shuffle does: a record may come late, but never more than the buffer's size early.
bool RecordStream::next(StreamedRecord& record) {
  StreamedRecord fresh;
  while (buffer_.size() < buffer_size_ && next_mixed(fresh)) buffer_.push_back(std::move(fresh));
  if (buffer_.empty()) return false;
  const auto at = static_cast<size_t>(random_.below(buffer_.size()));
  record = std::move(buffer_[at]);
  // The last record takes its place; the next call refills the buffer.
  if (at + 1 < buffer_.size()) buffer_[at] = std::move(buffer_.back());
  buffer_.pop_back();
  return true;
}

}  // namespace megalith::data

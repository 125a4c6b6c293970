// Selection works on numbers alone: which records of each dataset, in which mixture, and which of them are held out.
// The records themselves are read later, by the threads that encode them, each by its place in its file.
#include "megalith/data/sft/record_set.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"

namespace megalith::data {

// Scans all files once, to count records and find where they begin.
RecordSet::RecordSet(std::vector<DatasetDescription> datasets, const std::filesystem::path& scratch_folder,
                     bool shows_progress)
    : datasets_(std::move(datasets)) {
  TaskProgress progress("finding records", TaskProgress::Unit::kBytes, bytes_of_files(datasets_), "", shows_progress);
  const auto read = [&](int64_t bytes) { progress.add(bytes); };
  for (const DatasetDescription& dataset : datasets_) {
    std::vector<RecordFile> files;
    int64_t size = 0;
    for (const auto& path : dataset.files) size += files.emplace_back(path, scratch_folder, read).size();
    check<DataError>(size > 0, "dataset {} has no records ({})", dataset.name, dataset.files.front().string());
    files_.push_back(std::move(files));
    sizes_.push_back(size);
  }
}

// Finds the file of a record and its number there. Datasets have few files, so a linear search is enough.
const RecordFile& RecordSet::locate(const RecordRef& ref, int64_t& index) const {
  index = ref.record;
  for (const RecordFile& file : files_.at(static_cast<size_t>(ref.dataset))) {
    if (index < file.size()) return file;
    index -= file.size();
  }
  throw InternalError(fmt::format("record {} of dataset {} does not exist", ref.record, ref.dataset));
}

io::Json RecordSet::record(const RecordRef& ref) const {
  int64_t index = 0;
  const RecordFile& file = locate(ref, index);
  return file.record(index);
}

std::string RecordSet::place(const RecordRef& ref) const {
  int64_t index = 0;
  const RecordFile& file = locate(ref, index);
  return file.place(index);
}

// Only numbers are chosen and mixed here; no record is read.
std::vector<RecordRef> RecordSet::select(const SelectionOptions& options) const {
  std::vector<std::vector<int64_t>> chosen;
  for (size_t d = 0; d < datasets_.size(); ++d) {
    const auto wanted = datasets_[d].num_samples;
    if (wanted) {
      chosen.push_back(random_selection(sizes_[d], *wanted, mix_seed(options.mix.seed, d)));
    } else {
      chosen.emplace_back(static_cast<size_t>(sizes_[d]));
      std::iota(chosen.back().begin(), chosen.back().end(), int64_t{0});
    }
    // max_samples cuts after num_samples has drawn, as in LLaMA-Factory.
    if (options.max_samples && *options.max_samples < std::ssize(chosen.back()))
      chosen.back().resize(static_cast<size_t>(*options.max_samples));
  }
  std::vector<RecordRef> result;
  // The picker says from which dataset; `at` says which record of it comes next.
  std::vector<size_t> at(chosen.size(), 0);
  DatasetPicker picker(chosen.size(), options.mix);
  while (const auto d = picker.next()) {
    result.push_back({static_cast<int32_t>(*d), chosen[*d][at[*d]]});
    if (++at[*d] < chosen[*d].size()) continue;
    picker.exhausted(*d);
    at[*d] = 0;  // interleave_over draws it again from its first record
  }
  return result;
}

int64_t bytes_of_files(const std::vector<DatasetDescription>& datasets) {
  int64_t bytes = 0;
  for (const DatasetDescription& dataset : datasets)
    for (const auto& path : dataset.files) {
      std::error_code failed;
      const auto size = std::filesystem::file_size(path, failed);
      if (!failed) bytes += static_cast<int64_t>(size);
    }
  return bytes;
}

// Marks the first records of a random order, then walks over all of them, so that both parts keep their order.
RecordSplit split_records(const std::vector<RecordRef>& records, double val_size, uint64_t seed) {
  RecordSplit split;
  if (val_size <= 0) {
    split.train = records;
    return split;
  }
  const auto total = std::ssize(records);
  const auto held_out = val_size >= 1 ? static_cast<int64_t>(val_size)
                                      : static_cast<int64_t>(std::ceil(val_size * static_cast<double>(total)));
  check<ConfigError>(held_out < total, "val_size {} holds out {} of {} records; some must be left to train on",
                     val_size, held_out, total);
  std::vector<bool> out(records.size(), false);
  const Permutation order(total, mix_seed(seed, 0x76616C));  // "val": independent of other uses of the seed
  for (int64_t i = 0; i < held_out; ++i) out[static_cast<size_t>(order[i])] = true;
  for (size_t i = 0; i < records.size(); ++i) (out[i] ? split.validation : split.train).push_back(records[i]);
  return split;
}

}  // namespace megalith::data

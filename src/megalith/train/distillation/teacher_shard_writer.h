// Writes the files of one replica (teacher_files.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "megalith/train/distillation/teacher_files.h"

namespace megalith::train {

// Names of the tensors of a file; on disk, must not change.
inline constexpr const char *kKeys = "keys", *kEnds = "ends", *kChecksums = "checksums", *kIds = "ids",
                            *kLogProbs = "log_probs", *kLogTails = "log_tails";

// Returns TeacherShard::crc32c.
std::string checksum_of_tables(const at::Tensor& keys, const at::Tensor& ends, const at::Tensor& checksums);

// Collects samples and writes a file whenever their rows reach `file_bytes`, so that no more than a file is ever in
// memory. One thread.
class TeacherShardWriter {
 public:
  // `index` says types and sizes and outlives the writer; `replica` makes the files' names differ between writers.
  TeacherShardWriter(std::filesystem::path folder, const TeacherIndex& index, int replica, uint64_t file_bytes);

  // Adds a sample: ids int64 [n, k], log_probs and log_tails fp32, on the CPU. Throws DataError for log-probabilities
  // that are not numbers.
  void add(const SampleKey& key, const TaughtRows& rows);
  // Writes what is left, and returns the list of this replica's files. No other call may follow.
  std::vector<TeacherShard> finish();

 private:
  void write_file();

  const std::filesystem::path folder_;
  const TeacherIndex& index_;
  const int replica_;
  const uint64_t file_bytes_;
  std::vector<TeacherShard> written_;
  // The samples of the next file.
  std::vector<int64_t> keys_, ends_, checksums_;
  std::vector<TaughtRows> rows_;
  uint64_t bytes_ = 0;
};

}  // namespace megalith::train

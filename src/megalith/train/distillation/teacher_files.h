// TeacherFiles: the likeliest tokens of a teacher for a dataset, on disk. They take the teacher's place in training
// (`megalith distill` writes them, teacher_logits_path reads them).
//
//   FOLDER/index.json                   what the files hold, and the files; written last
//   FOLDER/logits-R-N.safetensors       file N of replica R, with s samples and their n labelled tokens
//     keys        I64 [s, 2]            content hash of each sample (taught_samples.h)
//     ends        I64 [s]               sample i has the rows [ends[i-1], ends[i])
//     checksums   I64 [s]               crc32c of the bytes of those rows: ids, log_probs, log_tails
//     ids         I32 [n, k]            the likeliest first
//     log_probs   F32, BF16 or F16 [n, k]   at temperature 1
//     log_tails   F32 [n, temperatures]     log of the probability of all other tokens, at each temperature; absent
//                                           when k is the size of the vocabulary
//
// A sample is found by its content and not by its number: order, shuffling, mixing and separate packing do not matter.
// At a temperature T the kept tokens have p in proportion to exp(log_probs / T), but the sum over all others cannot be
// computed from them, so it is kept for the temperatures that the writer was asked for, and for 1.
//
// Names, types and the format's number are on disk: they may not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/hf/dtype.h"

namespace megalith::train {

// The content of a sample, hashed.
using SampleKey = std::array<uint64_t, 2>;

// One file, as index.json lists it.
struct TeacherShard {
  std::string file;
  int64_t samples = 0;
  int64_t tokens = 0;
  std::string crc32c;  // checksum over keys, ends and checksums, eight hexadecimal digits
};

// index.json.
struct TeacherIndex {
  int64_t classes = 0;  // k
  int64_t vocab_size = 0;
  hf::Dtype dtype = hf::Dtype::kF32;          // element type of log_probs
  std::vector<double> temperatures;           // one per column of log_tails
  std::string teacher;                        // for people
  std::map<std::string, std::string> data{};  // the options that shaped the samples, for messages
  std::vector<TeacherShard> shards{};

  // Whether a row holds all of the vocabulary, so that there is no tail.
  bool is_whole() const { return classes == vocab_size; }
  // Returns the column of log_tails for a temperature; std::nullopt if the files were not written for it.
  std::optional<int64_t> tail_of(double temperature) const;
};

// Reads index.json alone. Throws DataError that names the file and what is wrong.
TeacherIndex read_teacher_index(const std::filesystem::path& folder);
// Writes index.json.
void write_teacher_index(const std::filesystem::path& folder, const TeacherIndex& index);

// The rows of one sample; views of the files.
struct TaughtRows {
  at::Tensor ids;        // int32 [n, k]
  at::Tensor log_probs;  // [n, k]
  at::Tensor log_tails;  // fp32 [n, temperatures]; undefined if is_whole()
};

// Returns the checksum of a sample's rows. They are contiguous, as in files.
int64_t checksum_of(const TaughtRows& rows);

// Open files. Immutable and thread-safe; the files are mapped, and rows are read when they are asked for.
class TeacherFiles {
 public:
  // Opens every file and checks it against the index. Throws DataError that names a file which is missing, cut short,
  // damaged or another one.
  explicit TeacherFiles(const std::filesystem::path& folder);

  const TeacherIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Returns the number of labelled tokens of the sample; std::nullopt if the files lack it.
  std::optional<int64_t> tokens_of(const SampleKey& key) const;
  // Returns the rows of a sample that the files have. Throws DataError if their checksum is wrong.
  TaughtRows rows_of(const SampleKey& key) const;

 private:
  struct Shard {
    std::filesystem::path path;
    at::Tensor keys, ends, checksums;
    TaughtRows rows;  // those of all samples
  };
  struct Place {
    SampleKey key;
    int64_t shard, sample;
    auto operator<=>(const Place&) const = default;
  };

  Shard open_shard(const TeacherShard& listed) const;
  void list_samples(int64_t shard);
  const Place* find(const SampleKey& key) const;

  std::filesystem::path folder_;
  TeacherIndex index_;
  std::vector<Shard> shards_;
  std::vector<Place> places_;  // sorted
};

}  // namespace megalith::train

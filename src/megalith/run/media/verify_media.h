// Verifies the media of datasets without a model: every image, video and sound that a record names is found and
// decoded, as a run with verify_media does while tokenizing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megalith/data/sft/record_set.h"

namespace megalith::run {

// The counts of a dataset, and its faults.
struct MediaFindings {
  int64_t records = 0;
  int64_t images = 0;
  int64_t videos = 0;  // lists of frames and files
  int64_t sounds = 0;
  // "data/train.jsonl:17: …", in the order of the records, one for each record that has a fault: a file that is missing
  // or damaged, or another number of markers than of media.
  std::vector<std::string> faults;
};

// Looks at all records of one dataset of the set, on up to `threads` threads. Records that a run would leave out, for
// want of an answer, are not looked at. Throws ConfigError for a dataset without a column of media.
MediaFindings verify_media(const data::RecordSet& records, size_t dataset, const std::filesystem::path& media_dir,
                           int threads);

}  // namespace megalith::run

// Runs a teacher over data and keeps its likeliest tokens in files (teacher_files.h).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/distillation/teacher_files.h"
#include "megalith/train/distillation/teacher_model.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

// The contents and the form of the files.
struct TeacherFilesRequest {
  std::filesystem::path folder;  // appears when it is complete; must not hold anything yet
  int64_t classes = 64;          // likeliest tokens to keep; the size of the vocabulary if that is smaller
  hf::Dtype dtype = hf::Dtype::kF32;
  double temperature = 1;                   // at which the tail is kept besides 1
  std::string teacher;                      // TeacherIndex::teacher
  std::map<std::string, std::string> data;  // TeacherIndex::data
  int64_t micro_batch_size = 8;             // samples per forward pass
  uint64_t file_bytes = uint64_t{1} << 30;  // after which a replica begins another file
};

// Writes the texts of all datasets. Every replica writes its share into files of its own; the layout of the ranks
// changes which file a text is in, but not what is kept of it. The folder must be seen by all machines. Collective over
// all ranks.
//
// Returns the index.
TeacherIndex write_teacher_files(std::span<const EvalData> datasets, TeacherModel& teacher,
                                 const TeacherFilesRequest& request, parallel::ParallelContext& context);

}  // namespace megalith::train

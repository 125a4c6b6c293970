// A teacher's likeliest tokens in files: writing them (`megalith distill`), and training with them
// (teacher_logits_path).
#pragma once

#include <filesystem>

#include "megalith/parallel/parallel_context.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/resolve/run_plan.h"
#include "megalith/run/run_data.h"
#include "megalith/train/distillation/write_teacher_files.h"

namespace megalith::run {

// Opens the files that the plan names, checks that they have every sample of `data`, and gives the samples what the
// files say about them; otherwise does nothing. Throws DataError for files that are broken or belong to other data.
// Collective over all ranks.
void attach_teacher_files(const RunPlan& plan, const parallel::ParallelContext& context, RunData& data);

// The choices of the caller of launch_teacher; the rest is in the plan.
struct TeacherFilesChoice {
  std::filesystem::path folder;
  int64_t top_k = 64;
  hf::Dtype dtype = hf::Dtype::kF32;
};

// Runs the teacher of a plan for Work::kTeach over its training and evaluation data, and writes what it finds
// likeliest. Starts ranks like launch_evaluation and returns an exit code.
int launch_teacher(const RunPlan& plan, const LaunchFlags& launch, const TeacherFilesChoice& choice);

}  // namespace megalith::run

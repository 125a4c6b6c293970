// Rehearses one rank of a large run on this machine: its own parameters, buffers, micro-batches, schedule and kernels
// for real, with stand-ins for all other ranks (comm/backend/stand_in.h) that last as long as a cluster's links would.
//
//   const RehearsalRequest request = rehearsal_request(options, model, {.world_size = 1024, .cluster = cluster});
//   const RehearsalResult result = rehearse(request);
//   write_stdout(rehearsal_text(request, result));           // rehearsal_report.h
//
// No store, no other process, no files: weights and tokens are random.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/backend/stand_in.h"
#include "megalith/layout/rank_grid.h"
#include "megalith/observe/profile/profile_report.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/memory.h"
#include "megalith/plan/step_time.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/run_plan.h"

namespace megalith::run {

// The choices of a rehearsal besides the options of the run.
struct RehearsalChoice {
  int world_size = 1;
  // At most one of them; rank 0 without either. A stage stands for its first rank.
  std::optional<int64_t> rank, stage;
  plan::Cluster cluster;        // operations last as long as on its links
  int64_t steps = 3;            // that are measured, after those that warm up
  std::filesystem::path trace;  // file for the timeline of the last step; empty for none
  // File for the kernels and operators of one more step, whose time is not part of the result; empty for none.
  std::filesystem::path profile;
  bool force = false;  // start although this machine has too little memory for the rank
};

// A rehearsal in which everything has been checked that can be without allocating.
struct RehearsalRequest {
  std::shared_ptr<const model::ModelConfig> model;
  RunSettings settings;
  plan::RunShape shape;                // complete, on the device of the rehearsal
  std::optional<ScoringPlan> scoring;  // in stages rm and cls
  int rank = 0;
  layout::RankPlace place;
  at::Device device = at::kCPU;
  RehearsalChoice choice;
};

// Checks the options (as parsed) and resolves them. Throws ConfigError for options that do not fit together or do not
// fit the world size, for a rank or stage that does not exist, for a model that cannot be laid out so, for what cannot
// be rehearsed (stages dpo and kto), and, unless forced, for a rank that needs more memory than this machine has free.
RehearsalRequest rehearsal_request(const config::TrainingArguments& options, const PlannedModel& model,
                                   const RehearsalChoice& choice);

// Operations of one kind in one group, per step.
struct RehearsedOps {
  std::string group;
  comm::OpKind kind = comm::OpKind::kBarrier;
  double operations = 0, bytes = 0;
  double lasts_s = 0;  // by the cluster's links
};

// Means over the measured steps, beside the plan. Seconds and bytes.
struct RehearsalResult {
  double step_s = 0;
  double exposed_s = 0;                             // communication that the rank waited for
  double bubble_s = 0;                              // waiting for messages that other stages would not have sent yet
  double making_bytes = 0, step_bytes = 0;          // peaks: while the state was made, and in steps
  std::vector<RehearsedOps> communication;          // by group and kind
  std::map<std::string, comm::StandInWaits> waits;  // by group, per step
  int64_t skipped = 0;                              // measured steps whose update was skipped
  std::optional<observe::ProfileRecord> profile;    // kernels of one more step

  plan::StepTime planned;           // that of the rehearsed stage, if no other one has more work
  double planned_run_s = 0;         // a step of the run, at the pace of its busiest stage
  plan::RankMemory planned_memory;  // that of the rehearsed stage

  double compute_s() const { return step_s - exposed_s - bubble_s; }
  // Returns the model FLOPs utilization if all ranks take as long for a step as this one.
  double mfu() const { return planned.model_flop / (step_s * planned.peak_flops); }
  double peak_bytes() const { return making_bytes > step_bytes ? making_bytes : step_bytes; }
};

// Runs the rehearsal. Uses the device of the request, and frees it again.
RehearsalResult rehearse(const RehearsalRequest& request);

}  // namespace megalith::run

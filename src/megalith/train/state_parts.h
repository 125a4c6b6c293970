// The state of a run on one rank: the rectangles that the rank holds, and a few texts. Unlike a checkpoint, it
// continues only in the layout that it was taken from, where each rank finds exactly the rectangles that it had; in
// return nothing is shared or put together. KeptState keeps it in memory, LocalSaves on the machine's own disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_checkpoint.h"
#include "megalith/train/run_progress.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// A rectangle of a parameter, of the optimizer's state or of an fp8 history.
struct StatePart {
  std::string name;  // parameters are called "weights.NAME", since NAME.fp8 and others may follow
  std::vector<int64_t> global_shape, offset;
  at::Tensor values;  // on the host
};

// Everything else that a rank continues from.
struct StateTexts {
  int64_t step = 0;
  std::string state, progress;  // JSON
  std::string rng;              // random streams; left as they are if empty
};

// Returns the rank's rectangles as views; empty ones are left out. All parameters must have arrived.
std::vector<parallel::ShardedTensor> state_tensors(OptimizedModel& model);
// Returns the texts for the state after step `state.global_step`, with the random streams.
StateTexts state_texts(OptimizedModel& model, const TrainerState& state, RunProgress progress);

// Returns the point from which the rank continues. restore() also fills the weights, and then frees `parts`; it throws
// DataError naming `origin` if a rectangle is missing. `origin` is also part of messages about the texts.
ResumePoint resume_point(const StateTexts& texts, std::vector<StatePart> parts, const std::string& origin);

}  // namespace megalith::train

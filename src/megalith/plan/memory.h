// Predicts the memory that a rank needs, part by part, from the sizes of our own buffers, layers and schedules.
//
// A walk over the rank's schedule allocates and frees what each action does (model/footprint/model_footprint.h), so
// the peak is that of the fullest moment and not a sum of maxima. Experts are assumed to be equally busy. Linear
// attention, latent attention and multi-token prediction are estimated; the rest is counted tensor by tensor.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "megalith/layout/pipeline_schedule.h"
#include "megalith/layout/pipeline_transfers.h"
#include "megalith/nn/footprint/memory_walk.h"
#include "megalith/plan/parameter_sizes.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Bytes on the device of one rank, unless said otherwise.
struct RankMemory {
  int pp_rank = 0;
  StateBytes state;
  nn::Bytes at_peak{};   // activations, communication and workspace at the fullest moment of a step
  double batches = 0;    // token ids and labels of a step, if they are kept on the device
  double making = 0;     // while buffers are created: parameters twice, no optimizer yet (with fp8_param it is there)
  double save_host = 0;  // on the host, while a checkpoint is written
  int in_flight = 0;     // most micro-batches between their forward and backward, over all chunks

  // Bytes held throughout a step, at its fullest moment, and at the fullest moment of the whole run.
  double always() const { return state.parameters + state.reference + state.gradients + state.optimizer + batches; }
  double step() const { return always() + nn::total(at_peak); }
  double peak() const { return making > step() ? making : step(); }
};

// Actions and messages of every pipeline rank; the same for all layouts with this schedule.
struct StepActions {
  std::vector<layout::RankSchedule> ranks;
  std::vector<layout::PipelineExchanges> exchanges;
  int microbatches = 0;  // in these schedules
};
// Caches them: a search asks for the same ones again and again. Used by one thread.
class ScheduleBook {
 public:
  // A schedule repeats itself: beyond a few micro-batches per chunk, more do not need more memory and are left out.
  const StepActions& of(const layout::PipelineShape& shape);

 private:
  std::map<std::tuple<int, int, int, int, int, bool>, StepActions> known_;
};

// Returns one entry per stage; the ranks of a stage need the same. Pass a book to reuse its schedules.
std::vector<RankMemory> plan_memory(const RunShape& run, ScheduleBook& book);
std::vector<RankMemory> plan_memory(const RunShape& run);
// Returns the entry with the largest peak; the first of equals. `ranks` must not be empty.
const RankMemory& fullest(const std::vector<RankMemory>& ranks);

}  // namespace megalith::plan

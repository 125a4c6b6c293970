// Memory that a rank needs, part by part, before there is one: the arithmetic of our own buffers, layers and schedules.
//
// A walk over the rank's schedule takes and gives back what each action does (model/footprint/model_footprint.h), so
// that the peak is that of the fullest moment and not a sum of maxima. Experts are taken to be equally busy. Linear
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
  double batches = 0;    // ids and labels of a step, where they are on the device
  double making = 0;     // while buffers are made: parameters twice, no optimizer yet
  double save_host = 0;  // on the host, while a checkpoint is written
  int in_flight = 0;     // micro-batches, of all chunks

  double always() const { return state.parameters + state.reference + state.gradients + state.optimizer + batches; }
  double step() const { return always() + nn::total(at_peak); }
  double peak() const { return making > step() ? making : step(); }
};

// Actions and messages of every pipeline rank; the same for all layouts with this schedule.
struct StepActions {
  std::vector<layout::RankSchedule> ranks;
  std::vector<layout::PipelineExchanges> exchanges;
};
// Remembers them: a search asks for the same ones again and again. One thread.
class ScheduleBook {
 public:
  // A schedule repeats itself: more micro-batches than a few for each chunk hold no more memory, and are left out.
  const StepActions& of(const layout::PipelineShape& shape);

 private:
  std::map<std::tuple<int, int, int, int, int>, StepActions> known_;
};

// Ranks of one stage need the same; the result has one entry a stage.
std::vector<RankMemory> plan_memory(const RunShape& run, ScheduleBook& book);
std::vector<RankMemory> plan_memory(const RunShape& run);
const RankMemory& fullest(const std::vector<RankMemory>& ranks);

}  // namespace megalith::plan

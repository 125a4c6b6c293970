// GraphedMicrobatches: runs forward and backward of micro-batches as recorded graphs (cuda_graph_impl local). This
// helps small models, for which the host cannot launch kernels as fast as the device runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/micro_batch.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/layout/pipeline_schedule.h"
#include "megalith/model/gpt_model.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/step/graph_recorder.h"
#include "megalith/train/step/recorded_batch.h"

namespace megalith::train {

// The facts about a run, beside its model, that decide about graphs.
struct GraphRun {
  layout::GridShape grid;
  bool on_cuda = false;
  bool nccl = false;             // collectives of several ranks run on the device
  bool recordable_loss = false;  // Objective::recordable()
  bool records_draws = true;     // parallel::can_record_draws()
  // With several stages: the schedule, and whether gradients of the head are left for its end.
  layout::ScheduleKind schedule = layout::ScheduleKind::kNone;
  bool defers_heads = false;
};

// Returns a loss whose tensors are copies: a replay changes those of the recorded one.
MicrobatchLoss copied(const MicrobatchLoss& recorded);

// Returns the reason why CUDA graphs cannot be used, as a phrase for a message; empty if they can. Does not check
// whether they were requested. The same on all ranks.
std::string graph_obstacle(const model::ModelOptions& options, const model::ModelConfig& config, const GraphRun& run);

// A graph holds one BatchKey: one shape (the lengths of the sequences) and one factor of the loss, since both are baked
// into its kernels. For each key there is one graph that overwrites gradients (the first micro-batch of a step) and one
// that adds to them. Replaying a graph gives, bit for bit, the results of launching its kernels one by one.
//
// The first steps (cuda_graph_warmup_steps) and the first micro-batch of each key run without graphs: that is when
// kernels are chosen, caches filled and connections made. At most kMostShapes keys are recorded; others always run
// without. If a recording fails, the run says so once and continues without graphs.
//
// For models without pipeline stages: a graph holds forward and backward. One thread per rank. `chunk` outlives it. The
// caller's current stream must be an OwnStream.
class GraphedMicrobatches {
 public:
  static constexpr int kMostShapes = 4;

  // Runs forward and backward of a micro-batch by device work alone. Returns its loss, whose tensors are detached.
  using Work = std::function<MicrobatchLoss(const data::MicroBatch&)>;

  // `make` makes the graphs; tests pass their own.
  GraphedMicrobatches(model::GptModel& chunk, int warm_up_steps, AgreeOnGraphs agree = nullptr,
                      MakeDeviceGraph make = make_device_graph);
  ~GraphedMicrobatches();

  // Counts steps for the warm-up; called once before the micro-batches of a step.
  void begin_step() { ++steps_; }
  // Returns the loss of the micro-batch, or std::nullopt when the caller has to run it. `constants` are the numbers
  // beside the micro-batch that `work` depends on: factors by which it multiplies losses.
  std::optional<MicrobatchLoss> run(const data::MicroBatch& batch, std::vector<double> constants, const Work& work);

  int recorded() const { return recorder_.recorded(); }  // number of graphs

 private:
  struct Graph;
  struct Shape;

  Shape& shape_of(BatchKey key, const data::MicroBatch& batch);
  bool start(Shape& shape, const data::MicroBatch& batch) const;
  const Graph* graph_of(Shape& shape, const Work& work);

  model::GptModel& chunk_;
  GraphRecorder recorder_;
  const int warm_up_steps_;
  int64_t steps_ = 0;
  std::vector<std::unique_ptr<Shape>> shapes_;  // in the order of their first use
};

}  // namespace megalith::train

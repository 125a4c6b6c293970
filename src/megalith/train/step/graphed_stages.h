// GraphedStages: runs the passes of a pipeline's micro-batches as recorded graphs (cuda_graph_impl local), one for the
// forward and one for the backward of a micro-batch in a chunk of this rank. Messages between stages stay outside.
//
//   1F1B      F0  F1  F2  B0  F3  B1 …        micro-batches 1 and 2 are in flight at the same time, 1 and 3 are not:
//   slot       -   0   1   -   0'  0  …       each needs memory of its own until its backward (0' waits for B1)
//
// A slot has two graphs with memory that they share with no other slot, an input and a gradient of the output that stay
// in place, and copies of what the host gives a micro-batch. It serves one micro-batch from its forward to its
// backward, so the schedule decides how many there are: as many as micro-batches are in flight at most.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/data/micro_batch.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/pipeline/forward_backward.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/step/graph_recorder.h"
#include "megalith/train/step/recorded_batch.h"

namespace megalith::train {

// A forward pass of a chunk.
struct StagePass {
  at::Tensor output;                   // hidden states, or the scalar that backward starts from; with its graph
  std::optional<MicrobatchLoss> loss;  // on the last stage, detached
};

// Replays give, bit for bit, the results of launching kernels one by one. Passes run without a graph
//
//   - in the first steps (cuda_graph_warmup_steps), and in one step at least, which shows what backward passes do to
//     the flags of gradients;
//   - for the first micro-batch of every step: it overwrites gradients, and parameters may still arrive;
//   - where the caller says so, and for micro-batches of another shape than the recorded one: memory for one is enough.
//
// If a recording fails, the run says so once and continues without graphs. One thread per rank, and in backward
// autograd's. The models outlive it; the caller's current stream must be an OwnStream.
class GraphedStages {
 public:
  // Runs the forward pass by device work alone, with gradients. The micro-batch and the input (undefined on the first
  // stage) are those that graphs read.
  using Work = std::function<StagePass(const data::MicroBatch&, const at::Tensor& input)>;

  // An empty `agree` means that no other rank is involved in a recording; `make` makes the graphs.
  GraphedStages(model::VirtualModels& models, int warm_up_steps, AgreeOnGraphs agree, MakeDeviceGraph make);
  ~GraphedStages();

  // Called around the passes of a step. What a failed step left is dropped.
  void begin_step();
  void end_step();

  // Returns the pass of the call, or std::nullopt when the caller has to run it. `constants` are the numbers beside the
  // micro-batch that `work` depends on. Backward of the output replays the second graph.
  std::optional<StagePass> forward(const pipeline::StageCall& call, const data::MicroBatch& batch,
                                   std::vector<double> constants, optim::DistributedDataParallel& gradients,
                                   const Work& work);

  int recorded() const { return recorded_; }  // number of graphs

 private:
  struct Slot;
  struct Chunk;

  Slot* free_slot(Chunk& chunk, const pipeline::StageCall& call, const data::MicroBatch& batch,
                  optim::DistributedDataParallel& gradients, const Work& work);
  bool record(Slot& slot, Chunk& chunk, const pipeline::StageCall& call, optim::DistributedDataParallel& gradients,
              const Work& work);

  const int warm_up_steps_;
  const AgreeOnGraphs agree_;
  const MakeDeviceGraph make_;
  const bool stretches_;  // rotary angles depend on the largest position
  std::vector<Chunk> chunks_;
  int64_t steps_ = 0;
  int recorded_ = 0;
  bool broken_ = false;  // no more graphs after an error
};

}  // namespace megalith::train

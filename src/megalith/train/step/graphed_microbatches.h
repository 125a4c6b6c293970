// GraphedMicrobatches: forward and backward of micro-batches as recorded graphs (cuda_graph_impl local), for small
// models, where the host cannot start kernels as fast as the device runs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/micro_batch.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/model/gpt_model.h"
#include "megalith/train/device/device_graph.h"

namespace megalith::train {

// Why a run cannot use graphs, in words that end a sentence; empty: it can. Whether they are asked for is not looked
// at.
std::string graph_obstacle(const model::ModelOptions& options, const model::ModelConfig& config,
                           const layout::GridShape& grid, bool on_cuda, bool plain_objective);

// A graph is for one shape (the lengths of the sequences) and one factor of the loss: both are written into its
// kernels. Of each there is one for gradients that are overwritten (the first micro-batch of a step) and one for those
// that are added to. What a graph does is, bit for bit, what the same kernels do when the host starts them one by one.
//
// The first steps (cuda_graph_warmup_steps), and the first micro-batch of each shape, run without: kernels are chosen
// and caches filled then. At most kMostShapes shapes are recorded; others always run without. A recording that fails is
// told once, and the run goes on without graphs; likewise once a micro-batch has extra tensors, whose shapes nothing
// ties to the lengths.
//
// One thread a rank. `chunk` outlives it. The caller's current stream is an OwnStream.
class GraphedMicrobatches {
 public:
  static constexpr int kMostShapes = 4;

  // Forward and backward of a micro-batch, by device work alone; gives the sum of its losses, without its graph.
  using Work = std::function<at::Tensor(const data::MicroBatch&)>;

  GraphedMicrobatches(model::GptModel& chunk, int warm_up_steps, MakeDeviceGraph make = make_device_graph);
  ~GraphedMicrobatches();

  void begin_step() { ++steps_; }
  // The sum of the losses of the micro-batch, or nothing when the caller has to run it. `factor`: by what `work`
  // multiplies the loss before backward.
  std::optional<at::Tensor> run(const data::MicroBatch& batch, double factor, const Work& work);

  int recorded() const;  // graphs

 private:
  struct Graph;
  struct Shape;

  Shape& shape_of(const data::MicroBatch& batch, double factor);
  const Graph* graph_of(Shape& shape, const Work& work);
  bool start(Shape& shape, const data::MicroBatch& batch) const;
  std::vector<bool> stale() const;
  void set_stale(const std::vector<bool>& stale) const;

  model::GptModel& chunk_;
  const int warm_up_steps_;
  const MakeDeviceGraph make_;
  int64_t steps_ = 0;
  bool broken_ = false;                         // no more graphs
  std::vector<std::unique_ptr<Shape>> shapes_;  // in the order in which they were met
};

}  // namespace megalith::train

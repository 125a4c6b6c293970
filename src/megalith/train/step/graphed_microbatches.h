// GraphedMicrobatches: runs forward and backward of micro-batches as recorded graphs (cuda_graph_impl local). This
// helps small models, for which the host cannot launch kernels as fast as the device runs them.
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

// Returns the reason why CUDA graphs cannot be used, as a phrase for a message; empty if they can. Does not check
// whether they were requested.
std::string graph_obstacle(const model::ModelOptions& options, const model::ModelConfig& config,
                           const layout::GridShape& grid, bool on_cuda, bool plain_objective);

// A graph holds one shape (the lengths of the sequences) and one factor of the loss, since both are baked into its
// kernels. For each pair there is one graph that overwrites gradients (the first micro-batch of a step) and one that
// adds to them. Replaying a graph gives, bit for bit, the results of launching its kernels one by one.
//
// The first steps (cuda_graph_warmup_steps) and the first micro-batch of each shape run without graphs: that is when
// kernels are chosen and caches filled. At most kMostShapes shapes are recorded; others always run without. If a
// recording fails, the run says so once and continues without graphs; likewise when a micro-batch has extra tensors,
// whose shapes do not follow from the lengths.
//
// One thread per rank. `chunk` outlives it. The caller's current stream must be an OwnStream.
class GraphedMicrobatches {
 public:
  static constexpr int kMostShapes = 4;

  // Runs forward and backward of a micro-batch by device work alone. Returns the sum of its losses, detached.
  using Work = std::function<at::Tensor(const data::MicroBatch&)>;

  // `make` makes the graphs; tests pass their own.
  GraphedMicrobatches(model::GptModel& chunk, int warm_up_steps, MakeDeviceGraph make = make_device_graph);
  ~GraphedMicrobatches();

  // Counts steps for the warm-up; called once before the micro-batches of a step.
  void begin_step() { ++steps_; }
  // Returns the sum of the losses of the micro-batch, or std::nullopt when the caller has to run it. `factor` is the
  // factor by which `work` multiplies the loss before backward.
  std::optional<at::Tensor> run(const data::MicroBatch& batch, double factor, const Work& work);

  int recorded() const;  // number of graphs

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
  bool broken_ = false;                         // no more graphs after an error
  std::vector<std::unique_ptr<Shape>> shapes_;  // in the order of their first use
};

}  // namespace megalith::train

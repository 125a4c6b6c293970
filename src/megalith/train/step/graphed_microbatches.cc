// Recording and replaying micro-batches.
//
// A graph refers to memory by address. So each shape owns the tensors that its graphs read (`batch`, `angles`): a
// micro-batch is first copied into them, then the graph is replayed. Parameters and gradient buffers stay in place
// during a run anyway. All graphs share one memory pool, which is safe because they run one after another.
//
// State of the host is not part of a graph: what `work` changes there, it changes only while recording. The only such
// state is Parameter::grad.stale (whether backward overwrites a gradient or adds to it). Graphs are therefore looked up
// by the flags before the pass, and a replay sets the flags that recording left.
#include "megalith/train/step/graphed_microbatches.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/model/block_parts.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

namespace {

// At this many shapes, those without a graph are forgotten: the list would otherwise grow with the data.
constexpr size_t kShapesRemembered = 64;

}  // namespace

// A graph replays kernels only, so a pass that computes something on the host cannot be recorded.
std::string graph_obstacle(const model::ModelOptions& options, const model::ModelConfig& config,
                           const layout::GridShape& grid, bool on_cuda, bool plain_objective) {
  if (!on_cuda) return "the run is on the CPU";
  if (grid.world_size > 1) return fmt::format("{} ranks exchange tensors within a step", grid.world_size);
  if (!plain_objective) return "the objective is not plain language modeling";
  if (std::string problem = model::capture_problem(config); !problem.empty()) return problem;
  if (config.mtp_layers > 0) return "multi-token prediction counts its targets on the host";
  const bool adapter_dropout = options.adapter && options.adapter->dropout > 0;
  if (config.attention_dropout > 0 || config.hidden_dropout > 0 || config.embedding_dropout > 0 || adapter_dropout ||
      options.neftune_alpha > 0)
    return "dropout and noise draw their seeds on the host";
  if (options.recompute.any()) return "recompute_granularity runs parts of the model during backward";
  if (options.offload.num_layers > 0) return "cpu_offloading frees memory that a replay would write to";
  if (options.fp8) return "fp8 carries scales from step to step";
  return "";
}

struct GraphedMicrobatches::Graph {
  std::vector<bool> before, after;  // stale flags before and after the pass
  std::unique_ptr<DeviceGraph> device;
  at::Tensor loss;  // written by each replay, hence cloned for the caller
};

struct GraphedMicrobatches::Shape {
  std::vector<int64_t> cumulative;  // lengths of the sequences, as offsets
  double factor = 0;
  int64_t met = 0;  // micro-batches seen with this shape
  // Set when the first graph is recorded.
  data::MicroBatch batch;  // on the device; its tensors are read by the graphs
  ops::RopeAngles angles;  // angles of its layout; read by the graphs
  std::vector<std::unique_ptr<Graph>> graphs;
};

GraphedMicrobatches::GraphedMicrobatches(model::GptModel& chunk, int warm_up_steps, MakeDeviceGraph make)
    : chunk_(chunk), warm_up_steps_(warm_up_steps), make_(std::move(make)) {}
GraphedMicrobatches::~GraphedMicrobatches() = default;

int GraphedMicrobatches::recorded() const {
  size_t count = 0;
  for (const auto& shape : shapes_) count += shape->graphs.size();
  return static_cast<int>(count);
}

// stale() reads and set_stale() writes the flags of all parameters, in the order of the model.
std::vector<bool> GraphedMicrobatches::stale() const {
  std::vector<bool> all;
  for (const auto& parameter : chunk_.parameters().all()) all.push_back(parameter->grad.stale);
  return all;
}

void GraphedMicrobatches::set_stale(const std::vector<bool>& stale) const {
  const auto& all = chunk_.parameters().all();
  for (size_t i = 0; i < all.size(); ++i) all[i]->grad.stale = stale[i];
}

// Returns std::nullopt during warm-up, for new shapes, and whenever graphs cannot be used.
std::optional<at::Tensor> GraphedMicrobatches::run(const data::MicroBatch& batch, double factor, const Work& work) {
  if (broken_) return std::nullopt;
  if (!batch.extras.empty()) {
    log_warning(
        "cuda_graph_impl local is not used: micro-batches have extra tensors (\"{}\"), which graphs do not support",
        batch.extras.begin()->first);
    broken_ = true;
    return std::nullopt;
  }
  Shape& shape = shape_of(batch, factor);
  const bool known = shape.met++ > 0;
  if (steps_ <= warm_up_steps_ || !known || !start(shape, batch)) return std::nullopt;
  const Graph* graph = graph_of(shape, work);
  if (graph == nullptr) return std::nullopt;
  graph->device->replay();
  set_stale(graph->after);
  return graph->loss.clone();
}

GraphedMicrobatches::Shape& GraphedMicrobatches::shape_of(const data::MicroBatch& batch, double factor) {
  for (const auto& shape : shapes_)
    if (shape->factor == factor && shape->cumulative == batch.layout.cumulative()) return *shape;
  if (shapes_.size() >= kShapesRemembered)
    std::erase_if(shapes_, [](const auto& shape) { return shape->graphs.empty(); });
  shapes_.push_back(std::make_unique<Shape>());
  shapes_.back()->cumulative = batch.layout.cumulative();
  shapes_.back()->factor = factor;
  return *shapes_.back();
}

// Copies the micro-batch to where graphs read it. Returns false if there is no room for another shape.
bool GraphedMicrobatches::start(Shape& shape, const data::MicroBatch& batch) const {
  const at::Device device = chunk_.options().device;
  const at::Tensor ids = ops::to_device(batch.ids, device), labels = ops::to_device(batch.labels, device);
  if (shape.batch.ids.defined()) {
    shape.batch.ids.copy_(ids);
    shape.batch.labels.copy_(labels);
    return true;
  }
  const auto used = std::ranges::count_if(shapes_, [](const auto& other) { return !other->graphs.empty(); });
  if (used >= kMostShapes) return false;
  shape.batch = batch;
  shape.batch.ids = ids.clone();
  shape.batch.labels = labels.clone();
  // Tensors that a layout creates on first use must exist before recording: a graph must not own them.
  shape.batch.layout.positions(device);
  shape.batch.layout.cumulative_tensor(device);
  shape.angles = chunk_.angles(shape.batch.layout);
  return true;
}

// Returns the graph for the current stale flags, recording it if necessary; nullptr if it cannot be recorded.
const GraphedMicrobatches::Graph* GraphedMicrobatches::graph_of(Shape& shape, const Work& work) {
  const std::vector<bool> before = stale();
  for (const auto& graph : shape.graphs)
    if (graph->before == before) return graph.get();
  const DeviceGraph* other = nullptr;
  for (const auto& recorded_shape : shapes_)
    if (!recorded_shape->graphs.empty()) other = recorded_shape->graphs.front()->device.get();
  chunk_.angles(shape.batch.layout);  // sets the model's angles, which another shape may have replaced
  // Return cached memory first: the graphs' pool cannot use it, and it would stay reserved beside the pool.
  const at::Device device = chunk_.options().device;
  if (other == nullptr && device.is_cuda()) at::accelerator::emptyCache();
  auto graph = std::make_unique<Graph>();
  graph->before = before;
  try {
    graph->device = make_(other);
    graph->device->record([to = graph.get(), batch = &shape.batch, work] { to->loss = work(*batch); });
  } catch (const c10::OutOfMemoryError&) {
    // Passed on: the caller explains what to do when memory runs out.
    throw;
  } catch (const std::exception& error) {
    log_warning("cuda_graph_impl local: a micro-batch cannot be recorded ({}); the run continues without graphs",
                first_line(error.what()));
    broken_ = true;
    set_stale(before);
    return nullptr;
  }
  graph->after = stale();
  set_stale(before);  // recording runs nothing
  log_text(LogLevel::kDebug, fmt::format("recorded a graph of a micro-batch of {} tokens in step {} of this run",
                                         shape.batch.tokens(), steps_));
  shape.graphs.push_back(std::move(graph));
  return shape.graphs.back().get();
}

}  // namespace megalith::train

// Decides which micro-batches are recorded, and when. Recording itself, with its effects on the host, is the work of
// GraphRecorder; RecordedBatch owns the memory that graphs read. Parameters and gradient buffers stay in place during a
// run anyway.
#include "megalith/train/step/graphed_microbatches.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/log.h"
#include "megalith/model/block_parts.h"

namespace megalith::train {

namespace {

// At this many shapes, those without a graph are forgotten: the list would otherwise grow with the data.
constexpr size_t kShapesRemembered = 64;

// The experts of a layer can be recorded where nothing about them depends on how many tokens each of them gets: on one
// rank, by kernels that read the counts on the device.
std::string expert_obstacle(const model::ModelOptions& options, const layout::GridShape& grid) {
  if (grid.ep > 1 || grid.expert_tp() > 1) return "the host reads how many tokens each expert gets from other ranks";
  if (options.dtype != at::kBFloat16)
    return "the host reads how many tokens each expert gets, unless the model is in bf16";
  return "";
}

// Whether a pass draws random numbers on the device.
bool draws_numbers(const model::ModelOptions& options, const model::ModelConfig& config) {
  const bool adapter_dropout = options.adapter && options.adapter->dropout > 0;
  const bool jitter = config.moe && config.moe->router.jitter > 0;
  return config.attention_dropout > 0 || config.hidden_dropout > 0 || config.embedding_dropout > 0 || adapter_dropout ||
         jitter;
}

}  // namespace

MicrobatchLoss copied(const MicrobatchLoss& recorded) {
  MicrobatchLoss loss = recorded;
  loss.sum = recorded.sum.clone();
  for (MicrobatchMetric& metric : loss.metrics) metric.sum = metric.sum.clone();
  return loss;
}

// A graph replays kernels only, so a pass that computes something on the host cannot be recorded.
std::string graph_obstacle(const model::ModelOptions& options, const model::ModelConfig& config, const GraphRun& run) {
  if (!run.on_cuda) return "the run is on the CPU";
  if (run.grid.tp * run.grid.cp > 1 && !run.nccl)
    return "tensor- and context-parallel ranks exchange tensors through the host (NCCL does not)";
  if (run.schedule == layout::ScheduleKind::kZeroBubble)
    return "the zero-bubble schedule computes weight gradients apart from the passes";
  if (run.grid.pp > 1 && run.defers_heads) return "defer_embedding_wgrad_compute leaves weight gradients for later";
  if (!run.recordable_loss) return "the objective does not say that the device can compute it alone";
  if (std::string problem = model::capture_problem(config); !problem.empty()) return problem;
  if (config.moe)
    if (std::string problem = expert_obstacle(options, run.grid); !problem.empty()) return problem;
  if (config.mtp_layers > 0) return "multi-token prediction counts its targets on the host";
  if (!run.records_draws && draws_numbers(options, config))
    return "dropout and noise can be recorded with libtorch 2.11 and 2.12 only";
  if (options.neftune_alpha > 0) return "neftune_noise_alpha seeds a generator of its own on the host";
  if (options.offload.num_layers > 0) return "cpu_offloading frees memory that a replay would write to";
  return "";
}

struct GraphedMicrobatches::Graph {
  std::unique_ptr<RecordedGraph> recorded;
  MicrobatchLoss loss;  // written by each replay
};

struct GraphedMicrobatches::Shape {
  BatchKey key;
  ops::SequenceLayout layout;          // that of the first micro-batch, which runs without a graph
  int64_t met = 0;                     // micro-batches seen with this key
  std::optional<RecordedBatch> batch;  // set when the first graph is recorded
  std::vector<std::unique_ptr<Graph>> graphs;
};

GraphedMicrobatches::GraphedMicrobatches(model::GptModel& chunk, int warm_up_steps, AgreeOnGraphs agree,
                                         MakeDeviceGraph make)
    : chunk_(chunk), recorder_({&chunk}, std::move(agree), std::move(make)), warm_up_steps_(warm_up_steps) {}
GraphedMicrobatches::~GraphedMicrobatches() = default;

// Returns std::nullopt during warm-up, for new shapes, and whenever graphs cannot be used.
std::optional<MicrobatchLoss> GraphedMicrobatches::run(const data::MicroBatch& batch, std::vector<double> constants,
                                                       const Work& work) {
  if (!recorder_.usable()) return std::nullopt;
  const auto& rope = chunk_.config().rope;
  const bool stretches = rope && rope->scaling == ops::RopeScaling::kDynamic;
  BatchKey key = BatchKey::of(batch, std::move(constants), stretches);
  Shape& shape = shape_of(std::move(key), batch);
  const bool known = shape.met++ > 0;
  if (steps_ <= warm_up_steps_ || !known || !recorder_.settled() || !start(shape, batch)) return std::nullopt;
  const Graph* graph = graph_of(shape, work);
  if (graph == nullptr) return std::nullopt;
  recorder_.replay(*graph->recorded);
  return copied(graph->loss);
}

GraphedMicrobatches::Shape& GraphedMicrobatches::shape_of(BatchKey key, const data::MicroBatch& batch) {
  for (const auto& shape : shapes_)
    if (shape->key == key) return *shape;
  if (shapes_.size() >= kShapesRemembered)
    std::erase_if(shapes_, [](const auto& shape) { return shape->graphs.empty(); });
  shapes_.push_back(std::make_unique<Shape>());
  shapes_.back()->key = std::move(key);
  shapes_.back()->layout = batch.layout;
  return *shapes_.back();
}

// Copies the micro-batch to where graphs read it. Returns false if there is no room for another shape.
bool GraphedMicrobatches::start(Shape& shape, const data::MicroBatch& batch) const {
  if (shape.batch) {
    shape.batch->load(batch);
    return true;
  }
  const auto used = std::ranges::count_if(shapes_, [](const auto& other) { return !other->graphs.empty(); });
  if (used >= kMostShapes) return false;
  shape.batch.emplace(batch, shape.layout, chunk_.options().device);
  return true;
}

// Returns the graph for the current stale flags, recording it if necessary; nullptr if it cannot be recorded.
const GraphedMicrobatches::Graph* GraphedMicrobatches::graph_of(Shape& shape, const Work& work) {
  const std::vector<bool> before = recorder_.stale();
  for (const auto& graph : shape.graphs)
    if (graph->recorded->before == before) return graph.get();
  shape.batch->hold_angles({&chunk_});
  auto graph = std::make_unique<Graph>();
  graph->recorded =
      recorder_.record([to = graph.get(), batch = &shape.batch->batch(), work] { to->loss = work(*batch); });
  if (!graph->recorded) return nullptr;
  log_text(LogLevel::kDebug, fmt::format("recorded a graph of a micro-batch of {} tokens in step {} of this run",
                                         shape.batch->batch().tokens(), steps_));
  shape.graphs.push_back(std::move(graph));
  return shape.graphs.back().get();
}

}  // namespace megalith::train

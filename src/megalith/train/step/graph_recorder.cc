// State of the host is not part of a graph: what a pass changes there, it changes only while it is recorded. There are
// three kinds of it, and a replay repeats what recording saw:
//
//   Parameter::grad.stale   whether backward overwrites a gradient or adds to it. Callers look up graphs by the flags
//                           before the pass; a replay sets those after it.
//   RouterStatistics        what routers count. Recording starts from nothing, so that the graph has the counts of its
//                           own pass, in memory that replays write; each replay adds them to the routers' sums.
//   random streams          seeds of dropout masks. See parallel::RecordedDraws.
//
// Collectives inside a graph (tensor and context parallelism) match those of other ranks by their order, like any
// others. So ranks that share them either all replay a pass or all launch it: they see the same shapes, and agree on
// the success of each recording.
#include "megalith/train/step/graph_recorder.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>

#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"

namespace megalith::train {

namespace {

using Statistics = std::vector<nn::RouterStatistics>;

// Returns the tensors of all routers in a fixed order.
std::vector<at::Tensor*> tensors_of(Statistics& all) {
  std::vector<at::Tensor*> tensors;
  for (nn::RouterStatistics& each : all) {
    tensors.push_back(&each.load);
    for (auto* values : {&each.losses, &each.spread})
      for (nn::RouterStatistics::Value& value : *values) tensors.push_back(&value.sum);
  }
  return tensors;
}

std::vector<at::Tensor> values_of(const std::vector<at::Tensor*>& tensors) {
  std::vector<at::Tensor> values;
  for (const at::Tensor* tensor : tensors) values.push_back(*tensor);
  return values;
}

// Returns `sums` plus a pass, in tensors that replays do not write; one launch for all routers.
Statistics with_pass(Statistics sums, Statistics pass) {
  const at::NoGradGuard no_grad;
  const bool first = std::ranges::none_of(sums, [](const auto& each) { return each.load.defined(); });
  const std::vector<at::Tensor> now = values_of(tensors_of(pass));
  const std::vector<at::Tensor> total =
      first ? at::_foreach_add(now, 0) : at::_foreach_add(values_of(tensors_of(sums)), now);
  Statistics result = std::move(pass);
  const std::vector<at::Tensor*> targets = tensors_of(result);
  for (size_t i = 0; i < targets.size(); ++i) *targets[i] = total[i];
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].micro_batches += sums[i].micro_batches;
    result[i].choices += sums[i].choices;
  }
  return result;
}

}  // namespace

GraphRecorder::GraphRecorder(std::vector<model::GptModel*> chunks, AgreeOnGraphs agree, MakeDeviceGraph make)
    : streams_(chunks.front()->context().rng()),
      device_(chunks.front()->options().device),
      agree_(std::move(agree)),
      make_(std::move(make)) {
  for (model::GptModel* chunk : chunks) {
    for (const auto& parameter : chunk->parameters().all()) parameters_.push_back(parameter.get());
    for (const model::GptModel::RouterPlace& place : chunk->routers()) routers_.push_back(place.router);
  }
}

// In the order of the model, like set_stale().
std::vector<bool> GraphRecorder::stale() const {
  std::vector<bool> all;
  for (const nn::Parameter* parameter : parameters_) all.push_back(parameter->grad.stale);
  return all;
}

void GraphRecorder::set_stale(const std::vector<bool>& stale) const {
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->grad.stale = stale[i];
}

GraphRecorder::Statistics GraphRecorder::exchange(Statistics statistics) const {
  Statistics before;
  for (size_t i = 0; i < routers_.size(); ++i)
    before.push_back(routers_[i]->exchange_statistics(std::move(statistics[i])));
  return before;
}

bool GraphRecorder::settled() const {
  return std::ranges::none_of(parameters_, [](const nn::Parameter* parameter) {
    return parameter->attached.fp8 && parameter->attached.fp8->fresh;
  });
}

std::unique_ptr<RecordedGraph> GraphRecorder::record(const std::function<void()>& work) {
  auto graph = std::make_unique<RecordedGraph>();
  graph->before = stale();
  Statistics counted = exchange(Statistics(routers_.size()));
  std::string problem;
  try {
    if (!pool_) {
      // Return cached memory first: the graphs' pool cannot use it, and it would stay reserved beside the pool.
      if (device_.is_cuda()) at::accelerator::emptyCache();
      pool_ = make_(nullptr);
    }
    if (!draws_) draws_ = std::make_unique<parallel::RecordedDraws>(streams_);
    graph->device = make_(pool_.get());
    graph->device->record([to = graph.get(), draws = draws_.get(), work] { to->drawn = draws->record(work); });
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    problem = first_line(error.what());
  }
  graph->after = stale();
  // Recording runs nothing.
  set_stale(graph->before);
  graph->routing = exchange(std::move(counted));
  const bool agreed = agree_ ? agree_(problem.empty()) : problem.empty();
  if (agreed) {
    ++recorded_;
    return graph;
  }
  log_warning("cuda_graph_impl local: a micro-batch cannot be recorded ({}); the run continues without graphs",
              problem.empty() ? "another rank failed" : problem);
  broken_ = true;
  return nullptr;
}

void GraphRecorder::replay(const RecordedGraph& graph) const {
  draws_->replay(graph.drawn);
  graph.device->replay();
  set_stale(graph.after);
  const bool routed = std::ranges::any_of(graph.routing, [](const auto& each) { return each.load.defined(); });
  if (routed) exchange(with_pass(exchange(Statistics(routers_.size())), graph.routing));
}

}  // namespace megalith::train

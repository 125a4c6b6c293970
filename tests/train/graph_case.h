// A stand-in for the device's graphs, for runs on the CPU.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/train/device/device_graph.h"

namespace megalith::testing {

// The memory that a recording must not change, and the routers on which a replay must not count.
struct GraphSurroundings {
  std::vector<at::Tensor> memory;
  std::vector<const nn::Router*> routers;
  parallel::RngTracker* streams;  // a recording does not move them

  GraphSurroundings(const std::vector<optim::DistributedDataParallel*>& gradients, model::VirtualModels& models)
      : streams(&models.context().rng()) {
    for (const auto* ddp : gradients)
      for (const auto& buffer : ddp->buffers()) memory.push_back(buffer->grads());
    for (const auto& chunk : models)
      for (const auto& place : chunk->routers()) routers.push_back(place.router);
    for (const auto& chunk : models)
      for (const auto& parameter : chunk->parameters().all())
        if (parameter->attached.fp8) memory.push_back(parameter->attached.fp8->seen);
  }
};

// Like a device's graph: recording leaves no trace in memory; a replay writes memory alone, and the tensors in which
// the recorded pass left its results. Random numbers are drawn by the replay itself, as always on the CPU.
class StandInGraph : public train::DeviceGraph {
 public:
  explicit StandInGraph(GraphSurroundings around) : around_(std::move(around)) {}

  void record(const std::function<void()>& work) override {
    std::vector<at::Tensor> before;
    for (const at::Tensor& each : around_.memory) before.push_back(each.clone());
    const std::string streams = around_.streams->save();
    work();
    around_.streams->restore(streams);
    for (size_t i = 0; i < before.size(); ++i) around_.memory[i].copy_(before[i]);
    for (const nn::Router* router : around_.routers) counted_.push_back(router->statistics());
    work_ = work;
  }

  void replay() override {
    std::vector<nn::RouterStatistics> before;
    for (const nn::Router* router : around_.routers) before.push_back(router->exchange_statistics({}));
    work_();
    for (size_t i = 0; i < before.size(); ++i)
      copy_values(around_.routers[i]->exchange_statistics(std::move(before[i])), counted_[i]);
  }

 private:
  static void copy_values(const nn::RouterStatistics& from, const nn::RouterStatistics& to) {
    if (from.load.defined()) to.load.copy_(from.load);
    for (size_t i = 0; i < from.losses.size(); ++i) to.losses[i].sum.copy_(from.losses[i].sum);
    for (size_t i = 0; i < from.spread.size(); ++i) to.spread[i].sum.copy_(from.spread[i].sum);
  }

  const GraphSurroundings around_;
  std::vector<nn::RouterStatistics> counted_;
  std::function<void()> work_;
};

// Records nothing.
class BrokenGraph : public train::DeviceGraph {
 public:
  void record(const std::function<void()>& work) override {
    work();
    throw std::runtime_error("operation not permitted when stream is capturing\nframe #0");
  }
  void replay() override {}
};

inline train::MakeDeviceGraph stand_ins(GraphSurroundings around) {
  return [around = std::move(around)](const train::DeviceGraph*) { return std::make_unique<StandInGraph>(around); };
}

}  // namespace megalith::testing

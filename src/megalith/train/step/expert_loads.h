// ExpertLoads: how many tokens each expert of a model gets, for the dashboard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace megalith::model {
class VirtualModels;
}

namespace megalith::train {

// The load of one layer in one step, summed over all ranks.
struct ExpertLoad {
  int64_t layer = 0;          // number in the whole model
  std::vector<float> tokens;  // tokens per expert, after dropping
};

// One per rank, on all ranks of a model with experts. note() is cheap and runs in every step; take() communicates and
// reads, and runs when a file is written.
class ExpertLoads {
 public:
  // `models` outlives it.
  explicit ExpertLoads(const model::VirtualModels& models) : models_(models) {}

  // Keeps the routers' counts; called between backward and the end of a step (TrainerCallback::on_optimizer_step).
  // Neither copies nor reads them.
  void note();
  // Returns the loads of this rank's layers in the step last noted, on the first of the ranks that hold these layers;
  // the others get an empty list. Collective over all ranks that hold the same layers; reads from the device.
  std::vector<ExpertLoad> take() const;

 private:
  const model::VirtualModels& models_;
  std::vector<std::pair<int64_t, at::Tensor>> noted_;  // layer, fp32 [E]
};

}  // namespace megalith::train

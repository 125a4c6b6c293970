// What the experts of a model get, for showing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace megalith::model {
class VirtualModels;
}

namespace megalith::train {

// One layer in one step, on all ranks together.
struct ExpertLoad {
  int64_t layer = 0;          // in the whole model
  std::vector<float> tokens;  // by expert, after dropping
};

// One a rank, on all ranks of a model with experts.
class ExpertLoads {
 public:
  // `models` outlives it.
  explicit ExpertLoads(const model::VirtualModels& models) : models_(models) {}

  // Between backward and the end of a step (TrainerCallback::on_optimizer_step): keeps what the routers have counted.
  // Copies and reads nothing.
  void note();
  // Of the step that was last noted: this rank's layers, on the first of the ranks that hold them; nothing on the
  // others. Collective over all ranks that hold the same layers; reads from the device.
  std::vector<ExpertLoad> take() const;

 private:
  const model::VirtualModels& models_;
  std::vector<std::pair<int64_t, at::Tensor>> noted_;  // layer, fp32 [E]
};

}  // namespace megalith::train

// EnergyCallback: adds the energy that the GPUs use to each training line (log_energy), as Megatron's energy monitor.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "megalith/comm/group.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Adds two means over all ranks since the last line, in which evaluations and checkpoints are included:
//   energy_per_device   joules per step
//   power_per_device    watts
// One all-reduce per line over `world`; nothing is read in between.
class EnergyCallback : public train::TrainerCallback {
 public:
  // The sources of the numbers, and the device of the tensors that the world's collectives take.
  struct Settings {
    std::function<double()> joules;  // used by this rank's GPU so far
    at::Device device = at::kCPU;
    std::function<double()> now{};  // seconds; empty for a steady clock
  };
  EnergyCallback(comm::Group world, Settings settings);
  void on_train_begin(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  void begin_interval(const train::TrainerEvent& event);

  comm::Group world_;
  Settings settings_;
  // At the last line, or the start.
  double joules_ = 0, seconds_ = 0;
  int64_t step_ = 0;
};

}  // namespace megalith::observe

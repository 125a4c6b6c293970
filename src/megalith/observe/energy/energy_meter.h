// EnergyMeter: the energy that a GPU has used, from the counter that NVIDIA's driver keeps (log_energy).
#pragma once

#include "megalith/observe/energy/nvml_device.h"

namespace megalith::observe {

// One per rank.
class EnergyMeter {
 public:
  // `cuda_device` is a number of this process, which has used CUDA before. Throws ConfigError, with NVML's own reason,
  // when the counter cannot be read: GPUs before Volta have none.
  explicit EnergyMeter(int cuda_device, const DriverLibraries& libraries = {});

  // Returns the joules used since the driver was loaded. Does not wait for the GPU's work, but takes the driver some
  // time (4 ms on an H200). A reading that fails repeats the last one.
  double joules();

 private:
  using Read = int(void*, unsigned long long*);  // nvmlDeviceGetTotalEnergyConsumption, in millijoules
  NvmlDevice device_;
  Read* read_ = nullptr;
  unsigned long long millijoules_ = 0;  // the last reading
};

}  // namespace megalith::observe

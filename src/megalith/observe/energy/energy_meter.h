// EnergyMeter: the energy that a GPU has used, from the counter that NVIDIA's driver keeps (log_energy).
//
// NVML (libnvidia-ml.so.1) comes with the driver. It is loaded at run time, so a program built without CUDA, or on a
// machine without a GPU, needs nothing.
#pragma once

#include <string>

namespace megalith::observe {

// The libraries that are loaded; both come with the driver.
struct DriverLibraries {
  std::string nvml = "libnvidia-ml.so.1";
  std::string cuda = "libcuda.so.1";
};

// Whether NVML can be loaded. Does not initialize it.
bool nvml_found(const DriverLibraries& libraries = {});

// One per rank. CUDA numbers GPUs differently from NVML (CUDA_VISIBLE_DEVICES), so the GPU is found by its PCI address.
class EnergyMeter {
 public:
  // `cuda_device` is a number of this process, which has used CUDA before. Throws ConfigError, with NVML's own reason,
  // when the counter cannot be read: GPUs before Volta have none.
  explicit EnergyMeter(int cuda_device, const DriverLibraries& libraries = {});
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  // Returns the joules used since the driver was loaded. Does not wait for the GPU's work, but takes the driver some
  // time (4 ms on an H200). A reading that fails repeats the last one.
  double joules();

 private:
  void* nvml_ = nullptr;                               // handle of the library
  void* device_ = nullptr;                             // NVML's handle of the GPU
  int (*read_)(void*, unsigned long long*) = nullptr;  // nvmlDeviceGetTotalEnergyConsumption, in millijoules
  unsigned long long millijoules_ = 0;                 // the last reading
};

}  // namespace megalith::observe

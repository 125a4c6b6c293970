#include "megalith/observe/energy/energy_meter.h"

#include "megalith/base/error.h"

namespace megalith::observe {

EnergyMeter::EnergyMeter(int cuda_device, const DriverLibraries& libraries)
    : device_(cuda_device, libraries, "log_energy"), read_(device_.find<Read>("nvmlDeviceGetTotalEnergyConsumption")) {
  check<ConfigError>(read_ != nullptr,
                     "log_energy: this NVIDIA driver has no counter of energy; leave log_energy out, or install a "
                     "newer driver");
  device_.require(read_(device_.handle(), &millijoules_), "read the energy counter");
}

double EnergyMeter::joules() {
  unsigned long long now = 0;
  if (read_(device_.handle(), &now) == 0) millijoules_ = now;
  return static_cast<double>(millijoules_) * 1e-3;
}

}  // namespace megalith::observe

// GpuMonitor: load, memory, temperature and power of a GPU, as nvidia-smi shows them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "megalith/observe/energy/nvml_device.h"

namespace megalith::observe {

// One reading. Numbers that the driver does not give for this GPU are absent.
struct GpuReading {
  std::optional<double> utilization;  // share of the driver's last sampling period in which a kernel ran: 0 to 1
  std::optional<double> memory_used, memory_total;  // bytes, those of other processes included
  std::optional<double> temperature;                // degrees Celsius
  std::optional<double> watts;
};

// One per rank. Never stops a run: what cannot be read is left out.
class GpuMonitor {
 public:
  // Returns nullptr where NVML or the GPU cannot be found. `cuda_device` is a number of this process, which has used
  // CUDA before. Readings are repeated for `least_interval`: the driver needs milliseconds for each number.
  static std::unique_ptr<GpuMonitor> open(int cuda_device, const DriverLibraries& libraries = {},
                                          std::chrono::milliseconds least_interval = std::chrono::seconds(10));

  // Does not wait for the GPU's work. One thread.
  GpuReading read();

 private:
  GpuMonitor(int cuda_device, const DriverLibraries& libraries, std::chrono::milliseconds least_interval);
  GpuReading read_now() const;

  NvmlDevice device_;
  std::chrono::milliseconds least_interval_;
  std::optional<std::chrono::steady_clock::time_point> read_at_;
  GpuReading last_;
};

}  // namespace megalith::observe

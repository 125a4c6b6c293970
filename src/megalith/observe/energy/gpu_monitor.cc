// Functions and structs of NVML are declared here, as its ABI has them. Each is optional: old drivers lack
// some, and some GPUs do not support others.
#include "megalith/observe/energy/gpu_monitor.h"

#include "megalith/base/error.h"

namespace megalith::observe {
namespace {

struct NvmlUtilization {  // nvmlUtilization_t: percent
  unsigned int gpu = 0, memory = 0;
};
struct NvmlMemory {  // nvmlMemory_t: bytes
  unsigned long long total = 0, free = 0, used = 0;
};
constexpr int kGpuSensor = 0;  // NVML_TEMPERATURE_GPU

// Calls `name` with the device and `more`; returns whether NVML has it and it succeeded.
template <typename... More>
bool call_nvml(const NvmlDevice& device, const char* name, More... more) {
  const auto function = device.find<int(void*, More...)>(name);
  return function != nullptr && function(device.handle(), more...) == 0;
}

}  // namespace

std::unique_ptr<GpuMonitor> GpuMonitor::open(int cuda_device, const DriverLibraries& libraries,
                                             std::chrono::milliseconds least_interval) try {
  return std::unique_ptr<GpuMonitor>(new GpuMonitor(cuda_device, libraries, least_interval));
} catch (const ConfigError&) {
  return nullptr;
}

GpuMonitor::GpuMonitor(int cuda_device, const DriverLibraries& libraries, std::chrono::milliseconds least_interval)
    : device_(cuda_device, libraries, "the state of GPUs"), least_interval_(least_interval) {}

GpuReading GpuMonitor::read() {
  const auto now = std::chrono::steady_clock::now();
  if (read_at_ && now - *read_at_ < least_interval_) return last_;
  read_at_ = now;
  last_ = read_now();
  return last_;
}

GpuReading GpuMonitor::read_now() const {
  constexpr double kPercent = 0.01, kMilliwatts = 1e-3;
  GpuReading reading;
  NvmlUtilization utilization;
  if (call_nvml(device_, "nvmlDeviceGetUtilizationRates", &utilization))
    reading.utilization = utilization.gpu * kPercent;
  NvmlMemory memory;
  if (call_nvml(device_, "nvmlDeviceGetMemoryInfo", &memory)) {
    reading.memory_used = static_cast<double>(memory.used);
    reading.memory_total = static_cast<double>(memory.total);
  }
  unsigned int degrees = 0;
  if (call_nvml(device_, "nvmlDeviceGetTemperature", kGpuSensor, &degrees)) reading.temperature = degrees;
  unsigned int milliwatts = 0;
  if (call_nvml(device_, "nvmlDeviceGetPowerUsage", &milliwatts)) reading.watts = milliwatts * kMilliwatts;
  return reading;
}

}  // namespace megalith::observe

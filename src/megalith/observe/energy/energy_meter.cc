// The few functions of NVML and of the CUDA driver that are needed are declared here, as their ABI has them, so that
// neither header is needed to build. Both libraries return 0 for success.
#include "megalith/observe/energy/energy_meter.h"

#include <dlfcn.h>

#include <array>
#include <memory>

#include "megalith/base/error.h"

namespace megalith::observe {
namespace {

constexpr const char* kAdvice = "; leave log_energy out, or look at the driver with nvidia-smi";

struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};
using LoadedLibrary = std::unique_ptr<void, CloseLibrary>;

LoadedLibrary load(const std::string& name) { return LoadedLibrary(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)); }

LoadedLibrary require_library(const std::string& name) {
  LoadedLibrary library = load(name);
  check<ConfigError>(library != nullptr, "log_energy needs the NVIDIA driver's {}, which cannot be loaded{}", name,
                     kAdvice);
  return library;
}

template <typename Function>
Function* find(void* library, const char* name) {
  auto* const function = reinterpret_cast<Function*>(::dlsym(library, name));
  check<ConfigError>(function != nullptr, "log_energy: the NVIDIA driver has no {}{}", name, kAdvice);
  return function;
}

// Returns "0000:18:00.0".
std::string pci_address(int cuda_device, const std::string& library_name) {
  const LoadedLibrary cuda = require_library(library_name);
  std::array<char, 32> address{};
  int device = 0;
  const bool found = find<int(int*, int)>(cuda.get(), "cuDeviceGet")(&device, cuda_device) == 0 &&
                     find<int(char*, int, int)>(cuda.get(), "cuDeviceGetPCIBusId")(
                         address.data(), static_cast<int>(address.size()), device) == 0;
  check<ConfigError>(found, "log_energy: CUDA does not know the PCI address of device {}{}", cuda_device, kAdvice);
  return address.data();
}

}  // namespace

bool nvml_found(const DriverLibraries& libraries) { return load(libraries.nvml) != nullptr; }

EnergyMeter::EnergyMeter(int cuda_device, const DriverLibraries& libraries) {
  const std::string address = pci_address(cuda_device, libraries.cuda);
  LoadedLibrary nvml = require_library(libraries.nvml);
  const auto error_text = find<const char*(int)>(nvml.get(), "nvmlErrorString");
  const auto require = [&](int status, const char* action) {
    check<ConfigError>(status == 0, "log_energy: NVML cannot {}, for the GPU at {}: {}{}", action, address,
                       error_text(status), kAdvice);
  };
  const auto shut_down = find<int()>(nvml.get(), "nvmlShutdown");
  require(find<int()>(nvml.get(), "nvmlInit_v2")(), "start");
  try {
    require(find<int(const char*, void**)>(nvml.get(), "nvmlDeviceGetHandleByPciBusId_v2")(address.c_str(), &device_),
            "find the device");
    read_ = find<int(void*, unsigned long long*)>(nvml.get(), "nvmlDeviceGetTotalEnergyConsumption");
    require(read_(device_, &millijoules_), "read the energy counter");
  } catch (...) {
    shut_down();
    throw;
  }
  nvml_ = nvml.release();
}

EnergyMeter::~EnergyMeter() {
  const LoadedLibrary nvml(nvml_);
  if (auto* const shut_down = reinterpret_cast<int (*)()>(::dlsym(nvml_, "nvmlShutdown"))) shut_down();
}

double EnergyMeter::joules() {
  unsigned long long now = 0;
  if (read_(device_, &now) == 0) millijoules_ = now;
  return static_cast<double>(millijoules_) * 1e-3;
}

}  // namespace megalith::observe

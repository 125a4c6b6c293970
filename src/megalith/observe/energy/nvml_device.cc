// The few functions of NVML and of the CUDA driver that are needed are declared where they are used, as their ABI has
// them, so that neither header is needed to build. Both libraries return 0 for success.
#include "megalith/observe/energy/nvml_device.h"

#include <dlfcn.h>

#include <array>
#include <memory>

#include "megalith/base/error.h"

namespace megalith::observe {
namespace {

struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};
using LoadedLibrary = std::unique_ptr<void, CloseLibrary>;

LoadedLibrary load(const std::string& name) { return LoadedLibrary(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)); }

std::string advice(const std::string& option) {
  return fmt::format("; leave {} out, or look at the driver with nvidia-smi", option);
}

LoadedLibrary require_library(const std::string& name, const std::string& option) {
  LoadedLibrary library = load(name);
  check<ConfigError>(library != nullptr, "{} needs the NVIDIA driver's {}, which cannot be loaded{}", option, name,
                     advice(option));
  return library;
}

template <typename Function>
Function* require_function(void* library, const char* name, const std::string& option) {
  auto* const function = reinterpret_cast<Function*>(::dlsym(library, name));
  check<ConfigError>(function != nullptr, "{}: the NVIDIA driver has no {}{}", option, name, advice(option));
  return function;
}

// Returns "0000:18:00.0".
std::string pci_address_of(int cuda_device, const std::string& library_name, const std::string& option) {
  const LoadedLibrary cuda = require_library(library_name, option);
  std::array<char, 32> address{};
  int device = 0;
  const bool found = require_function<int(int*, int)>(cuda.get(), "cuDeviceGet", option)(&device, cuda_device) == 0 &&
                     require_function<int(char*, int, int)>(cuda.get(), "cuDeviceGetPCIBusId", option)(
                         address.data(), static_cast<int>(address.size()), device) == 0;
  check<ConfigError>(found, "{}: CUDA does not know the PCI address of device {}{}", option, cuda_device,
                     advice(option));
  return address.data();
}

}  // namespace

bool nvml_found(const DriverLibraries& libraries) { return load(libraries.nvml) != nullptr; }

NvmlDevice::NvmlDevice(int cuda_device, const DriverLibraries& libraries, std::string option)
    : option_(std::move(option)), pci_address_(pci_address_of(cuda_device, libraries.cuda, option_)) {
  LoadedLibrary nvml = require_library(libraries.nvml, option_);
  nvml_ = nvml.get();  // for require(), which asks it for texts
  const auto shut_down = require_function<int()>(nvml_, "nvmlShutdown", option_);
  require(require_function<int()>(nvml_, "nvmlInit_v2", option_)(), "start");
  try {
    const auto by_address =
        require_function<int(const char*, void**)>(nvml_, "nvmlDeviceGetHandleByPciBusId_v2", option_);
    require(by_address(pci_address_.c_str(), &device_), "find the device");
  } catch (...) {
    shut_down();
    throw;
  }
  nvml.release();  // the destructor closes it
}

NvmlDevice::~NvmlDevice() {
  const LoadedLibrary nvml(nvml_);
  if (const auto shut_down = find<int()>("nvmlShutdown")) shut_down();
}

void NvmlDevice::require(int status, const char* action) const {
  const auto text_of = find<const char*(int)>("nvmlErrorString");
  check<ConfigError>(status == 0, "{}: NVML cannot {}, for the GPU at {}: {}{}", option_, action, pci_address_,
                     text_of != nullptr ? text_of(status) : "it gives no reason", advice(option_));
}

void* NvmlDevice::address_of(const char* name) const { return ::dlsym(nvml_, name); }

}  // namespace megalith::observe

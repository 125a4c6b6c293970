// NvmlDevice: a GPU as NVIDIA's management library (NVML) knows it.
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

// NVML stays initialized while the object lives. CUDA numbers GPUs differently from NVML (CUDA_VISIBLE_DEVICES), so the
// GPU is found by its PCI address.
class NvmlDevice {
 public:
  // `cuda_device` is a number of this process, which has used CUDA before. `option` is named in errors as the reason
  // why the driver is needed. Throws ConfigError, with NVML's own reason, when the GPU cannot be found.
  NvmlDevice(int cuda_device, const DriverLibraries& libraries, std::string option);
  ~NvmlDevice();
  NvmlDevice(const NvmlDevice&) = delete;
  NvmlDevice& operator=(const NvmlDevice&) = delete;

  // Returns a function of NVML, or nullptr when this version of the driver has none of that name.
  template <typename Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }
  void* handle() const { return device_; }  // first argument of NVML's functions on devices

  // Throws ConfigError unless `status` is NVML's success; `action` completes "NVML cannot …".
  void require(int status, const char* action) const;

 private:
  void* address_of(const char* name) const;

  std::string option_;
  std::string pci_address_;
  void* nvml_ = nullptr;  // handle of the library
  void* device_ = nullptr;
};

}  // namespace megalith::observe

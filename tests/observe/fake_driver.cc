// A library in place of NVIDIA's driver: two GPUs, of which CUDA shows the second first, as CUDA_VISIBLE_DEVICES may
// do. Each reading of a counter finds 1500 millijoules more. CUDA's third device has no such counter.
#include <cstring>
#include <string>

namespace {
constexpr const char* kAddresses[] = {"0000:02:00.0", "0000:01:00.0", "0000:03:00.0"};
constexpr int kNotFound = 6, kNotSupported = 3, kInvalid = 1;
int running = 0;
unsigned long long energy[] = {1000, 2000};
}  // namespace

extern "C" {

int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal > 2) return kInvalid;
  *device = ordinal;
  return 0;
}

int cuDeviceGetPCIBusId(char* address, int size, int device) {
  std::strncpy(address, kAddresses[device], static_cast<size_t>(size));
  return 0;
}

int nvmlInit_v2() { return ++running, 0; }
int nvmlShutdown() { return --running, 0; }
int fakeNvmlRunning() { return running; }

const char* nvmlErrorString(int status) { return status == kNotSupported ? "Not Supported" : "Not Found"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  const std::string text = address;
  if (text == "0000:03:00.0") return *device = nullptr, 0;
  if (text != "0000:01:00.0" && text != "0000:02:00.0") return kNotFound;
  *device = &energy[text == "0000:01:00.0" ? 0 : 1];
  return 0;
}

struct Utilization {
  unsigned int gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};

int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  if (device == nullptr) return kNotSupported;
  *rates = {97, 40};
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {1000, 400, 600};
  return 0;
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned int* degrees) {
  if (device == nullptr || sensor != 0) return kNotSupported;
  *degrees = 61;
  return 0;
}

// Each reading finds 1 W more.
int nvmlDeviceGetPowerUsage(void* device, unsigned int* milliwatts) {
  static unsigned int now = 640500;
  if (device == nullptr) return kNotSupported;
  *milliwatts = now;
  now += 1000;
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  if (device == nullptr) return kNotSupported;
  auto* const counter = static_cast<unsigned long long*>(device);
  *millijoules = *counter;
  *counter += 1500;
  return 0;
}
}

// The devices of the emulation. As with CUDA each thread has a current one, which is 0 until it is set; memory belongs
// to a device, and a kernel runs where its thread is, wherever its arguments are: that is what the runtime then
// refuses.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace megalith::cuda_emulation {

inline constexpr int kDevices = 2;  // equal ones

// The device of the calling thread, as cudaGetDevice and cudaSetDevice see it.
int current_device();
void set_current_device(int device);

// Makes `device` the current one of this thread while it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : before_(current_device()) { set_current_device(device); }
  ~CurrentDevice() { set_current_device(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const int before_;
};

// Says, while it lives, that memory belongs to a device. Memory of which nobody says so is at home on all of them.
class DeviceMemory {
 public:
  DeviceMemory(int device, const void* begin, size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 private:
  const void* const begin_;
};

// The arguments of a kernel, as bytes.
using Arguments = std::vector<std::span<const std::byte>>;
// Names an argument that a kernel on the current device must not get: an address in another device's memory, alone or
// in a structure. Empty when all is well.
std::string misplaced_memory(const Arguments& arguments);

}  // namespace megalith::cuda_emulation

#include "tests/cuda_emulation/devices.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace megalith::cuda_emulation {

namespace {

struct Owner {
  size_t bytes = 0;
  int device = 0;
};

// Not thread_local: those variables of this library are shared memory (shared_memory.h).
struct DeviceState {
  std::mutex mutex;
  std::map<std::thread::id, int> current;
  std::map<uintptr_t, Owner> memory;  // by first address
};

DeviceState& state() {
  static DeviceState only;
  return only;
}

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

int current_device() {
  const std::lock_guard lock(state().mutex);
  const auto found = state().current.find(std::this_thread::get_id());
  return found == state().current.end() ? 0 : found->second;
}

void set_current_device(int device) {
  if (device < 0 || device >= kDevices) throw std::out_of_range(fmt::format("there is no device {}", device));
  const std::lock_guard lock(state().mutex);
  state().current[std::this_thread::get_id()] = device;
}

DeviceMemory::DeviceMemory(int device, const void* begin, size_t bytes) : begin_(begin) {
  const std::lock_guard lock(state().mutex);
  state().memory[number(begin)] = {bytes, device};
}

DeviceMemory::~DeviceMemory() {
  const std::lock_guard lock(state().mutex);
  state().memory.erase(number(begin_));
}

std::string misplaced_memory(const Arguments& arguments) {
  const int here = current_device();
  const std::lock_guard lock(state().mutex);
  if (state().memory.empty()) return "";
  for (size_t i = 0; i < arguments.size(); ++i)
    for (size_t at = 0; at + sizeof(uintptr_t) <= arguments[i].size();
         at += sizeof(uintptr_t)) {  // pointers are aligned
      uintptr_t address = 0;
      std::memcpy(&address, arguments[i].data() + at, sizeof address);
      auto found = state().memory.upper_bound(address);
      if (found == state().memory.begin()) continue;
      --found;
      const Owner& owner = found->second;
      if (address - found->first >= owner.bytes || owner.device == here) continue;
      return fmt::format("argument {} has memory of device {}, but the kernel is started on device {}", i, owner.device,
                         here);
    }
  return "";
}

}  // namespace megalith::cuda_emulation

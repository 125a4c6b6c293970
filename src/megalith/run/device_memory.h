// What is known of the memory of a rank's device.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace megalith::run {

// The most that was in use so far: of the allocator on a device, otherwise of the process.
int64_t peak_bytes(c10::Device device);
// What the allocator of a device holds now, in use or not. Requires a device with one.
int64_t reserved_bytes(c10::Device device);
// All that the device has; 0 on the CPU.
int64_t capacity_bytes(c10::Device device);

}  // namespace megalith::run

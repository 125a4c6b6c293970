#include "megalith/run/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#include <algorithm>

namespace megalith::run {

namespace {

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::DeviceIndex index_of(c10::Device device) {
  return static_cast<c10::DeviceIndex>(std::max<int>(device.index(), 0));
}

auto stats_of(c10::Device device) { return c10::getDeviceAllocator(device.type())->getDeviceStats(index_of(device)); }

}  // namespace

int64_t peak_bytes(c10::Device device) {
  if (device.is_cuda()) return stats_of(device).allocated_bytes[kAll].peak;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t reserved_bytes(c10::Device device) { return stats_of(device).reserved_bytes[kAll].current; }

int64_t capacity_bytes(c10::Device device) {
  if (!device.is_cuda()) return 0;
  return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(index_of(device)).second);
}

}  // namespace megalith::run

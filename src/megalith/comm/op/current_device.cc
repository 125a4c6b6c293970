// VirtualGuardImpl is c10's table of device functions: it reaches those of CUDA without linking this module against it.
#include "megalith/comm/op/current_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "megalith/base/error.h"

namespace megalith::comm {

void make_device_current(c10::Device device) {
  if (device.is_cpu() || !device.has_index()) return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void check_device_current(c10::Device device, std::string_view what) {
  if (device.is_cpu() || !device.has_index()) return;
  const c10::Device current = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  if (current == device) [[likely]]
    return;
  throw InternalError(
      fmt::format("{} is to run on {}, but the current device of this thread is {}. Each thread that uses a GPU must"
                  " call make_device_current first.",
                  what, device.str(), current.str()));
}

}  // namespace megalith::comm

// A device that is stuck in a kernel, for tests of what looks after a run.
#pragma once

#include <c10/core/Device.h>

namespace megalith::train {

// Gives the device a kernel that does not end within a day, on the current stream, and returns: whatever waits for the
// device waits with it. On the CPU, which has no queue, the calling thread is stuck here.
void stall_device(c10::Device device);

}  // namespace megalith::train

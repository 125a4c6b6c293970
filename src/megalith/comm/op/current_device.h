// The GPU that a thread's work runs on.
//
// CUDA keeps a current device per thread, which is GPU 0 until the thread changes it. ATen's operations switch to the
// device of their tensors by themselves; our own kernels, events, library handles and captured graphs use the current
// one, whatever memory they are given. So every thread that touches a GPU makes its rank's GPU current first, and every
// launch checks it.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace megalith::comm {

// Makes `device` current for this thread. Does nothing for the CPU, or for a device without an index, which means the
// current one.
void make_device_current(c10::Device device);

// Throws InternalError, naming both devices and `what` (the operation that is to run), unless `device` is the CPU or
// current for this thread. Costs about 20 ns.
void check_device_current(c10::Device device, std::string_view what);

}  // namespace megalith::comm

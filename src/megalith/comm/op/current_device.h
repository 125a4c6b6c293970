// The GPU on which a thread's work lands.
//
// CUDA keeps a current device for each thread, which is GPU 0 until the thread says otherwise. ATen's operations switch
// to the device of their tensors by themselves; kernels of our own, events, library handles and captured graphs land on
// the current one, whatever memory they are given. So every thread that touches a GPU makes its rank's GPU current
// before anything else, and everything that launches checks it.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace megalith::comm {

// Makes `device` the current one of this thread. Does nothing for the CPU, nor for a device without an index, which
// means the current one.
void make_device_current(c10::Device device);

// Throws InternalError, naming both devices and `what` (the operation that is to run), unless `device` is the CPU or
// the current one of this thread. Costs some 20 ns.
void check_device_current(c10::Device device, std::string_view what);

}  // namespace megalith::comm

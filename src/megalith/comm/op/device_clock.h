// The clock of a GPU, for TraceRecorder::set_device_clock.
//
// Marks are CUDA events from a pool. Events tell differences only, so the clock now and then places an anchor: an event
// on a stream of its own, which is idle, at a time that the host has noted. Nobody waits for it: it is looked at when a
// mark after it is read.
//
//   time of a mark = host's time of the newest anchor before it + time from that anchor to the mark on the device
//
// The device passes an anchor a little after the host has noted the time, so the latest of the bounds that successive
// anchors give is the best one. Differences between marks are exact to about a microsecond. Beside times of the host,
// device times are early by the shortest time that an event takes to reach the device (some 5 µs); the two clocks drift
// apart by a few µs per second, from one align() to the next.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "megalith/base/device_clock.h"

namespace megalith::comm {

// Returns nullptr for the CPU, where the host does the work. Times are those of std::chrono::steady_clock, which is
// TraceRecorder's. Throws InternalError for a GPU in a build without CUDA.
std::shared_ptr<DeviceClock> make_device_clock(c10::Device device);

}  // namespace megalith::comm

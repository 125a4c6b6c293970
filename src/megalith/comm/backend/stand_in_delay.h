// Waits on a CUDA stream by the device's own clock. Pointers are to device memory; streams are cudaStream_t.
#pragma once

#include <cstdint>

namespace megalith::comm {

// Writes the device's time in nanoseconds to `at` when the stream gets there. Both functions return why the launch
// failed, or nullptr.
const char* stamp_device_time(uint64_t* at, void* stream);
// Holds the stream until `ns` nanoseconds after the time at `since`; not at all if they are over.
const char* hold_stream(const uint64_t* since, int64_t ns, void* stream);

}  // namespace megalith::comm

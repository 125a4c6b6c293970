// Profiler: records kernels, copies and operators through Kineto, the profiler that libtorch ships (CUPTI below it).
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>

#include "megalith/base/trace.h"
#include "megalith/observe/profile/profile_report.h"

namespace megalith::observe {

// Records from its construction until stop(), on the calling thread and on those that it gives work to (autograd's).
// Kineto has one session per process: at most one Profiler may live; a second one on the same thread throws
// InternalError. Starting and stopping take a moment, and every operator takes some microseconds more in between.
class Profiler {
 public:
  // Sets the environment variables that Kineto reads. Call it before other threads are started.
  static void prepare(c10::Device device);

  explicit Profiler(c10::Device device);
  // Ends without a file, if stop() was not called. On the thread that constructed it.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Waits for the device, ends, and writes everything to `file` in Chrome's trace format. Call it once, on the thread
  // that constructed the profiler. Throws DataError if the file cannot be written.
  ProfileRecord stop(const std::filesystem::path& file);

  // Shows a span of TraceRecorder in the profile; for TraceRecorder::set_annotate.
  static std::shared_ptr<void> annotate(const TraceLabel& label);

 private:
  const c10::Device device_;
  bool running_ = true;
};

}  // namespace megalith::observe

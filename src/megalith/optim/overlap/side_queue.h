// SideQueue: work of a device beside what the caller's stream does: a second stream, in which pieces of work run one
// after the other.
//
//   queue->begin();                          // pieces run after everything that the caller's stream has been given
//   queue->add([&] { … launch kernels … });  // piece 0
//   queue->add(…);                           // piece 1
//   …                                        // the caller's stream does other work meanwhile
//   queue->wait_for(1);                      // further work of the caller's stream runs after pieces 0 and 1
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "megalith/base/trace.h"

namespace megalith::optim {

// One thread. The host never waits.
class SideQueue {
 public:
  virtual ~SideQueue() = default;
  // Starts a list of pieces. All earlier ones must have been waited for.
  virtual void begin() = 0;
  // Adds the next piece. The work refers to nothing that changes or is freed before the piece has been waited for.
  virtual void add(std::function<void()> work) = 0;
  // Makes the current stream of the calling thread wait for this piece and all before it.
  virtual void wait_for(size_t piece) = 0;
};

// Makes the queue of a device; `trace` shows its pieces in a lane of their own and may be nullptr.
using MakeSideQueue = std::function<std::unique_ptr<SideQueue>(c10::Device device, TraceRecorder* trace)>;
// Returns a stream of the device; nullptr for the CPU, which has none.
std::unique_ptr<SideQueue> make_side_queue(c10::Device device, TraceRecorder* trace);

}  // namespace megalith::optim

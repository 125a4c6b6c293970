// RecordedDraws: random numbers of a pass that is recorded as a device graph and replayed.
//
// A recording runs nothing, so its draws have no values: each notes its random stream and how much the pass has drawn
// from it before. Before a replay the host writes the states of the streams to the device, where the kernels add what
// was noted, and moves the streams on by what the pass draws. So replays draw what the same pass would draw if its
// kernels were launched one by one, in any mixture of both.
//
//   stream   default                    model-parallel-rng
//   state    seed, offset 40            seed, offset 12
//   draws    +0   +4      +8  (sum 12)  +0   +4  (sum 8)          as recorded; the next pass begins at 52 and 20
//
// A pass that recomputes finds its draws again, since it goes back to places of the same pass; so does a backward pass
// that is recorded by itself, after the forward pass that left these places.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/parallel/recorded_generator.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::parallel {

// For the thread of its rank; the streams outlive it and keep their names. Graphs that it recorded read its memory, so
// they are gone before it.
class RecordedDraws {
 public:
  // How much a pass draws from each stream, in the unit of the generator's offset; empty where draws cannot be
  // recorded.
  using Counts = std::vector<uint64_t>;

  explicit RecordedDraws(RngTracker& streams, MakeRecordedGenerator make = make_recorded_generator);

  // Runs `work`, which a graph records, and returns what it draws. The streams do not move. No fork may be active.
  Counts record(const std::function<void()>& work) const;
  // Submits the states of the streams to the device, for a replay that follows on the current stream, and moves the
  // streams on. Without draws it does nothing, and what was submitted before stays. Does not wait for the device.
  void replay(const Counts& drawn) const;

  // Seed and offset of each stream as of the latest replay, int64 [streams, 2], on the device: the default stream, then
  // the named ones in the order of their names.
  const at::Tensor& starts() const { return starts_; }

 private:
  RngTracker& streams_;
  const MakeRecordedGenerator make_;
  const std::vector<std::string> names_;
  const at::Tensor starts_;
};

// Returns whether a pass with these counts draws anything.
bool draws_anything(const RecordedDraws::Counts& drawn);

}  // namespace megalith::parallel

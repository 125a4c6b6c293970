// RngTracker: the random streams of one rank.
//
// Tensor-parallel ranks must draw different numbers where each holds its own part of a tensor, and equal numbers where
// all hold the same tensor. So a rank has one generator whose state is swapped: outside any fork it is the default
// stream (equal on the ranks of a tp group); inside a fork it is a named one.
//
//   at::Tensor mask = at::empty_like(x).bernoulli_(keep, rng.generator());    // equal on all tp ranks
//   {
//     const auto fork = rng.fork();                                            // "model-parallel-rng"
//     mask.bernoulli_(keep, rng.generator());                                  // different on every tp rank
//   }
//
// On CPU the generator belongs to the tracker and is never libtorch's global one, so that results do not depend on the
// thread that a rank runs on or on what other ranks draw. On CUDA it is the default generator of the rank's device,
// since kernels such as fused attention take no other.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/layout/rng_seeds.h"

namespace megalith::parallel {

class RecordedGenerator;
struct RecordedPlace;

inline constexpr std::string_view kDataParallelRng = "data-parallel-rng";
inline constexpr std::string_view kModelParallelRng = "model-parallel-rng";
inline constexpr std::string_view kExpertParallelRng = "expert-parallel-rng";

// For the thread of its rank only. Not copyable; forks refer to it.
class RngTracker {
 public:
  explicit RngTracker(at::Device device = at::kCPU);
  RngTracker(const RngTracker&) = delete;
  RngTracker& operator=(const RngTracker&) = delete;

  // Returns the generator for everything random on the rank's device: its state is that of the innermost fork.
  const at::Generator& generator() const { return device_generator_; }
  // Returns the generator for decisions on the host (data order, file names): equal on all ranks, unaffected by forks.
  const at::Generator& host_generator() const { return host_generator_; }

  at::Device device() const { return device_; }

  // Restarts all streams: default, host, and the three named ones. No fork may be active.
  void seed(const layout::RngSeeds& seeds);

  // Removes the named streams. The generator keeps its state.
  void reset();
  // Adds a named stream; the generator keeps its state. Throws InternalError when the name or the seed is in use.
  void add(std::string_view name, int64_t seed);
  bool is_initialized() const { return !streams_.empty(); }

  // While it lives, generator() draws from the named stream; afterwards the stream keeps its progress, and generator()
  // is as it was before, also when an exception ends the scope. Forks nest; a fork of the stream that is already active
  // continues it.
  class [[nodiscard]] Fork {
   public:
    ~Fork();
    Fork(const Fork&) = delete;
    Fork& operator=(const Fork&) = delete;

   private:
    friend class RngTracker;
    Fork(RngTracker& tracker, std::string name);
    RngTracker& tracker_;
    const std::string name_;
    at::Tensor outer_state_;  // state of generator() to restore; undefined if there is none
    at::Tensor host_state_;
  };
  // Throws InternalError for a name that was not added.
  Fork fork(std::string_view name = kModelParallelRng);
  // Returns a fork if the condition holds; otherwise an object without effect.
  Fork fork_if(bool condition, std::string_view name = kModelParallelRng);

  // While it lives, draws are those of a pass that a device graph records (RecordedDraws): all streams are at the start
  // of the pass, the default one as number 0, the named ones as 1, 2, … in the order of their names. Then everything is
  // as before, also when an exception ends the scope. No fork may be active at its start and end.
  class [[nodiscard]] Recording {
   public:
    Recording(RngTracker& tracker, RecordedGenerator& generator);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    // Returns how far the pass has come in each stream, in the order of their numbers.
    std::vector<RecordedPlace> places() const;

   private:
    RngTracker& tracker_;
    const std::map<std::string, at::Tensor> before_;
  };

  // states() copies the states of the named streams; set_states() replaces them all.
  std::map<std::string, at::Tensor> states() const;
  void set_states(const std::map<std::string, at::Tensor>& states);

  // save() returns everything (host, default and named streams) as bytes, for checkpoints and for recompute; restore()
  // puts it back exactly. Throws DataError for bytes that save() did not produce on the same kind of device.
  std::string save() const;
  void restore(std::string_view bytes);

 private:
  // The state that generator() has: a place while a pass is recorded.
  at::Tensor device_state() const;
  void set_device_state(const at::Tensor& state);

  const at::Device device_;
  at::Generator host_generator_;
  at::Generator device_generator_;
  std::map<std::string, at::Tensor> streams_;  // state of each named stream, as of its last fork
  std::map<std::string, int64_t> seeds_;       // the seed that each stream was started with
  std::vector<std::string> active_;            // names of the forks alive, innermost last
  RecordedGenerator* recorded_ = nullptr;      // while a Recording lives
};

}  // namespace megalith::parallel

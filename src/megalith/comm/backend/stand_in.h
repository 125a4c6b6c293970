// Stand-ins for the other ranks of a run, so that one rank of it can be rehearsed alone.
//
// The rank computes, allocates and communicates as in the real run. Its operations move real bytes on its own device,
// give results of the right shapes, and last as long as the caller's model of the links says. Every other member is
// assumed to hold what this rank holds:
//
//   all_reduce       sum: the tensor times the number of members; avg, max, min: the tensor
//   all_gather       the rank's own part, once for each member
//   reduce_scatter   the rank's own block, reduced like an all_reduce
//   all_to_all       from each member, the block that this rank keeps for itself: balanced wherever its own blocks are
//   broadcast        the tensor as it is
//   recv             small random numbers; zeros in tensors of integers
//
// So results are finite and counts add up, but losses mean nothing.
//
//   const auto others = make_stand_ins({.lasts = …, .sent = …}, device);
//   const auto world = World::rehearse(rank, size, {.device = device}, others);
//   others->begin_step();  … a step …;  others->take_waits();
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megalith/comm/op/backend.h"
#include "megalith/comm/op/op_recorder.h"

namespace megalith::comm {

// The behavior of links and of other ranks, in seconds. Called on the thread that starts the operation.
struct StandInTimes {
  // How long an operation lasts once all members have started it.
  std::function<double(const GroupInfo& group, const OpInfo& op)> lasts;
  // When the other side of a receive sends, counted from begin_step; 0 if it is never late. May be empty: never late.
  std::function<double(const GroupInfo& group, const OpInfo& op)> sent{};
};

// Seconds for which the rank stood still.
struct StandInWaits {
  double exposed = 0;    // for operations in progress: communication that nothing hides
  double for_peers = 0;  // for messages that the other side would not have sent yet: the bubble of a pipeline
};

// A clock in seconds, for stand-ins on the CPU. Tests pass one that does not tick by itself.
class StandInClock {
 public:
  virtual ~StandInClock() = default;
  virtual double now() = 0;
  // Returns at that time or later; at once if it is over.
  virtual void wait_until(double time) = 0;
};

// Several sends and receives, or one collective, which begin and end together.
struct StandInCall {
  const GroupInfo& group;
  std::vector<Op> ops;
  at::Generator noise;  // for tensors on the CPU; a GPU draws from its own generator
  double lasts = 0;
  double sent = 0;  // see StandInTimes
};

// Where the stand-ins of groups that share connections run, one after the other.
class StandInQueue {
 public:
  virtual ~StandInQueue() = default;
  // Starts a call. The handle serves for all of its operations.
  virtual std::shared_ptr<PendingOp> run(const StandInCall& call) = 0;
  // See Backend::stream.
  virtual std::optional<c10::Stream> stream() const { return std::nullopt; }
};

// The device on which stand-ins run: its clock, its queues, and the account of what was waited for.
class StandInDevice {
 public:
  virtual ~StandInDevice() = default;
  virtual void begin_step() = 0;
  virtual std::unique_ptr<StandInQueue> open_queue() = 0;
  virtual std::map<std::string, StandInWaits> take_waits() = 0;
};
// On the CPU the host moves the data while it starts an operation (that time is exposed) and sleeps in wait().
std::unique_ptr<StandInDevice> make_host_stand_ins(std::unique_ptr<StandInClock> clock);
// On CUDA each queue has a stream, as a communicator of NCCL has: a kernel on it ends when the time is over, and the
// host never waits. Throws InternalError in a build without CUDA.
std::unique_ptr<StandInDevice> make_cuda_stand_ins(c10::Device device);

// All ranks but one. Used by the thread of that one and, in backward, by autograd's.
class StandIns {
 public:
  StandIns(StandInTimes times, std::unique_ptr<StandInDevice> device);

  // Starts the clock of StandInTimes::sent. On CUDA it counts from when the device gets there.
  void begin_step() { device_->begin_step(); }
  // Returns what the rank has waited for since the last call, by the name of the group (of the first one, for groups
  // that share connections). On CUDA the device must have finished its work.
  std::map<std::string, StandInWaits> take_waits() { return device_->take_waits(); }
  // Opens the connections of a group. For World.
  std::unique_ptr<Backend> connect(const GroupInfo& group) const;

 private:
  const StandInTimes times_;
  const std::shared_ptr<StandInDevice> device_;
};

// Returns stand-ins on the device of the run.
std::shared_ptr<StandIns> make_stand_ins(StandInTimes times, c10::Device device);

// Writes the results of the operations of `call` into their tensors, on the current stream.
void write_results(const StandInCall& call);

}  // namespace megalith::comm

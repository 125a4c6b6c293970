// Injects faults to test everything that supervises a run (the reference's FT_SIM_FAULT_DESC).
//
//   FT_SIM_FAULT_DESC="kind;rank;delay"
//
//   kind   rank_killed (SIGKILL), rank_hung (SIGSTOP), random (one of the two); faults of a rank that keeps working:
//          exception, out_of_memory (worded as by the device's allocator), data_stuck, collective_stuck,
//          kernel_stuck (a kernel that does not end), save_stuck, nan_loss, gradient_bit (flips an exponent bit
//          of the gradient), slow (adds 200 ms to each step)
//   rank   the rank that fails; if empty, rank 0 draws one
//   delay  seconds after training has begun, plus up to a fifth; only in the first start of a job.
//          Or @file: as soon as that file exists, which is then removed; in any start
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/trainer.h"

namespace megalith::train {

// Values of `kind` above. kRankKilled and kRankHung act on the process, from a thread; the others on the training
// thread, inside a step or save.
enum class FaultKind {
  kRankKilled,
  kRankHung,
  kRandom,
  kException,
  kOutOfMemory,
  kDataStuck,
  kCollectiveStuck,
  kKernelStuck,
  kSaveStuck,
  kNanLoss,
  kGradientBit,
  kSlow,
};

// The parsed FT_SIM_FAULT_DESC. "rank_killed;3;10" -> rank 3 is killed after 10 to 12 seconds.
struct FaultDescription {
  FaultKind kind = FaultKind::kRandom;
  std::optional<int> rank;
  double delay_seconds = 0;
  std::string trigger;  // the @file that replaces the delay; empty for none

  // Throws ConfigError naming FT_SIM_FAULT_DESC and the part that is wrong.
  static FaultDescription parse(const std::string& text);
};

// Owns the thread that waits for the time of the fault; the destructor ends it.
class SimulatedFault {
 public:
  virtual ~SimulatedFault() = default;
};

// Puts the fault into the setup of a trainer. Collective; the rank that is to fail gets an object that must be kept as
// long as the trainer, the others nullptr. The context outlives both.
std::unique_ptr<SimulatedFault> simulate_fault(const FaultDescription& what, parallel::ParallelContext& context,
                                               int restarts, TrainerSetup& setup);
// Does the same with FT_SIM_FAULT_DESC; returns nullptr when it is not set.
std::unique_ptr<SimulatedFault> simulate_fault_from_env(parallel::ParallelContext& context, int restarts,
                                                        TrainerSetup& setup);

}  // namespace megalith::train

// Faults on purpose, for tests of everything that looks after a run (the reference's FT_SIM_FAULT_DESC).
//
//   FT_SIM_FAULT_DESC="kind;rank;delay"
//
//   kind   rank_killed (SIGKILL), rank_hung (SIGSTOP), random (one of the two); and, of a rank that still works:
//          exception, out_of_memory (as the device's allocator says it), data_stuck, collective_stuck, kernel_stuck
//          (the device has a kernel that does not end), save_stuck, nan_loss, gradient_bit (an exponent bit of the
//          gradient is flipped), slow (each step takes 200 ms longer)
//   rank   which one; empty: rank 0 draws it
//   delay  seconds after training has begun, and up to a fifth more; in the first start of a job only.
//          Or @file: once that file is there, which is then removed; in any start
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/trainer.h"

namespace megalith::train {

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

struct FaultDescription {
  FaultKind kind = FaultKind::kRandom;
  std::optional<int> rank;
  double delay_seconds = 0;
  std::string trigger;  // a file, in place of the delay

  // Throws ConfigError naming FT_SIM_FAULT_DESC and the part that is wrong.
  static FaultDescription parse(const std::string& text);
};

// Waits for its time while it lives.
class SimulatedFault {
 public:
  virtual ~SimulatedFault() = default;
};

// Puts the fault into the set-up of a trainer. All ranks call it; the one that is meant gets an object to keep as long
// as the trainer. The context outlives both.
std::unique_ptr<SimulatedFault> simulate_fault(const FaultDescription& what, parallel::ParallelContext& context,
                                               int restarts, TrainerSetup& setup);
// By FT_SIM_FAULT_DESC; nothing without it.
std::unique_ptr<SimulatedFault> simulate_fault_from_env(parallel::ParallelContext& context, int restarts,
                                                        TrainerSetup& setup);

}  // namespace megalith::train

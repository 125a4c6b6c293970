// ResultCheck: which results of a step are suspicious, who is told, and what happens then. The one place that decides
// it.
//
//                                                      NaN or infinite    far above the largest seen
//   loss of each micro-batch, on the last stage        OnNonFinite        check_for_spiky_loss
//   gradients of each bucket, before they are reduced  OnNonFinite        check_for_large_grads
//
// What is far above goes to the RerunMachine, and is never fatal. The host waits for a device only where it would
// anyway: losses are read at the end of a pass (at once on the CPU, where that costs nothing), gradients as
// optim::ParamBuffer::check_gradients says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/train/faults/rerun_machine.h"
#include "megalith/train/objectives/objective.h"

namespace megalith::train {

// A loss is NaN or infinite; the message names step, rank and micro-batch.
class NonFiniteLoss : public Error {
 public:
  using Error::Error;
};

// What a NaN or an infinity leads to.
enum class OnNonFinite {
  kSkipStep,  // check_for_nan is off: the optimizer leaves the step out by itself; only a warning
  kThrow,     // rerun_mode is disabled: NonFiniteLoss or optim::NonFiniteGradient, noted in the tracker
  kRerun      // a fatal result for the RerunMachine
};

// One thread a rank. `machine` and `tracker`, which may be nullptr, outlive it.
class ResultCheck {
 public:
  ResultCheck(const RerunSettings& settings, RerunMachine& machine, const RejectionTracker* tracker, int rank);
  ResultCheck(const ResultCheck&) = delete;
  ResultCheck& operator=(const ResultCheck&) = delete;

  // Looks at the gradients of these chunks from now on. It outlives them.
  void watch(std::span<optim::DistributedDataParallel* const> chunks);

  // A pass, forward and backward of all micro-batches of a step: begin; on the last stage add_loss for each
  // micro-batch, before its backward pass if possible; check_losses when all have run.
  void begin(int64_t step, size_t microbatches);
  void add_loss(const MicrobatchLoss& loss);
  void check_losses();

  // The loss of the step is not finite, and the run goes on: says which micro-batches are the cause.
  void warn_of_skipped_step() const;

  // Whether a CheckedResult::message is about a loss that is not finite.
  static bool is_of_loss(const std::string& message);

 private:
  struct Loss {
    ops::HostScalar sum;
    int64_t count = 0;
  };

  bool reads_gradients() const;
  void check_gradients(const optim::BucketGradients& gradients, size_t chunk);
  void require_finite_losses() const;
  void validate_loss(size_t microbatch);
  std::string describe(size_t microbatch) const;  // its loss
  template <typename E>
  [[noreturn]] void fail(const char* what, const std::string& text) const;

  const RerunSettings settings_;
  const OnNonFinite on_non_finite_;
  RerunMachine& machine_;
  const RejectionTracker* const tracker_;
  const int rank_;
  // Of the present pass.
  int64_t step_ = 0;
  size_t microbatches_ = 0;
  std::vector<Loss> losses_;
};

}  // namespace megalith::train

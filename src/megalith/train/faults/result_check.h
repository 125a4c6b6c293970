// ResultCheck: the one place that decides which results of a step are suspicious, who is told, and what happens then.
//
//                                                      NaN or infinite    far above the largest seen
//   loss of each micro-batch, on the last stage        OnNonFinite        check_for_spiky_loss
//   gradients of each bucket, before they are reduced  OnNonFinite        check_for_large_grads
//
// Values far above the largest seen go to the RerunMachine, and are never fatal. The host waits for a device only where
// it would wait anyway: losses are read at the end of a pass (at once on the CPU, where that costs nothing), gradients
// as described at optim::ParamBuffer::check_gradients. An update may be queued before both: veto() closes its gate.
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

// Thrown for a loss that is NaN or infinite; the message names step, rank and micro-batch.
class NonFiniteLoss : public Error {
 public:
  using Error::Error;
};

// The reaction to a NaN or an infinity.
enum class OnNonFinite {
  kSkipStep,  // check_for_nan is off: only a warning; the optimizer skips the step by itself
  kThrow,     // rerun_mode is disabled: throws NonFiniteLoss or optim::NonFiniteGradient and notes it in the tracker
  kRerun      // a fatal result for the RerunMachine
};

// One thread per rank. `machine` and `tracker`, which may be nullptr, outlive it. Decides; RerunMachine remembers and
// compares, RerunGuard acts.
class ResultCheck {
 public:
  // `rank` is for messages.
  ResultCheck(const RerunSettings& settings, RerunMachine& machine, const RejectionTracker* tracker, int rank);
  ResultCheck(const ResultCheck&) = delete;
  ResultCheck& operator=(const ResultCheck&) = delete;

  // Checks the gradients of these chunks from now on. The check outlives them.
  void watch(std::span<optim::DistributedDataParallel* const> chunks);

  // One pass is forward and backward of all micro-batches of a step: begin(); on the last stage add_loss() for each
  // micro-batch, before its backward pass if possible; check_losses() when all have run.
  void begin(int64_t step, size_t microbatches);
  void add_loss(const MicrobatchLoss& loss);
  void check_losses();

  // Returns fp64 [1] on `device`, more than 0 if this rank has rejected a result of the pass. With `unread`, results
  // that the host has not read yet count as well, which only the device knows: `losses`, and the gradients of the
  // watched chunks as far as they are measured on the device. Does not wait.
  at::Tensor veto(std::span<const MicrobatchLoss> losses, bool unread, at::Device device) const;
  // Returns whether a result that is not finite ends the run on the rank that computed it.
  bool throws() const { return on_non_finite_ == OnNonFinite::kThrow; }

  // Warns that the loss of the step is not finite although the run continues, and names the micro-batches that caused
  // it.
  void warn_of_skipped_step() const;

  // Returns whether a CheckedResult::message is about a loss that is not finite.
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
  std::string describe(size_t microbatch) const;  // says which loss is not finite
  template <typename E>
  [[noreturn]] void fail(const char* what, const std::string& text) const;

  const RerunSettings settings_;
  const OnNonFinite on_non_finite_;
  RerunMachine& machine_;
  const RejectionTracker* const tracker_;
  const int rank_;
  // State of the current pass.
  int64_t step_ = 0;
  size_t microbatches_ = 0;
  std::vector<Loss> losses_;

  std::vector<optim::DistributedDataParallel*> chunks_;  // those that are watched
};

}  // namespace megalith::train

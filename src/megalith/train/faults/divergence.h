// StepHistory: tells a run that has diverged from a device that computes wrong numbers.
//
// A NaN that comes out the same in a second run of the step is either correct (the learning rate is too high, the data
// is bad) or the work of a device that is broken for good. A diverging run announces itself: its loss, its gradients or
// its parameters grow first. A broken device does not.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace megalith::train {

// The numbers of a step whose update took place.
struct GoodStep {
  int64_t number = 0;  // from 1
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
};

// One thread per rank. Every rank adds the same numbers, so all of them come to the same verdict.
class StepHistory {
 public:
  // A value has grown if it is this many times its usual size: the median of the steps before, or the parameters' norm
  // before the first step. Losses vary less from batch to batch than gradients do.
  static constexpr double kLossGrowth = 3, kNormGrowth = 10, kParameterGrowth = 10;
  // Parameters whose norm is this many times that before the first step cannot be trained any further.
  static constexpr double kLostGrowth = 1e4;
  static constexpr size_t kKept = 100;  // steps

  // Begins a run whose parameters have this norm.
  explicit StepHistory(double parameter_norm = 0) : start_norm_(parameter_norm) {}

  void add(const GoodStep& step);

  // Returns what grew before the run met a NaN or an infinity, when the parameters have the norm `parameter_norm`: "the
  // loss had grown from 2.1 to 950". std::nullopt if everything was steady.
  std::optional<std::string> growth(double parameter_norm) const;
  // Returns whether parameters with this norm are not worth saving: not finite, or far too large.
  bool is_lost(double parameter_norm) const;
  // Returns "step 11: loss 2.10, gradient norm 1.3, learning rate 1.0e-03", or that there was no good step.
  std::string last_in_words() const;

 private:
  const double start_norm_;
  std::deque<GoodStep> steps_;  // the last kKept
};

// Returns the samples of a step in words: "samples 3, 17, 20 and 5 more of the training data (counted from 0)".
// `samples` are their numbers; if empty, as for a stream, samples `first` to `first + count - 1` in the order of
// training are named instead.
std::string samples_in_words(const std::vector<int64_t>& samples, int64_t first, int64_t count);

}  // namespace megalith::train

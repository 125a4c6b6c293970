#include "megalith/train/faults/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/text.h"

namespace megalith::train {

namespace {

// Requires at least one value.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void StepHistory::add(const GoodStep& step) {
  steps_.push_back(step);
  if (steps_.size() > kKept) steps_.pop_front();
}

// The last step is compared with those before it; a single step has nothing to be compared with.
std::optional<std::string> StepHistory::growth(double parameter_norm) const {
  if (!std::isfinite(parameter_norm)) return "the parameters had become NaN, infinite or far too large";
  if (start_norm_ > 0 && parameter_norm > kParameterGrowth * start_norm_)
    return fmt::format("the norm of the parameters had grown from {:.4g} to {:.4g}", start_norm_, parameter_norm);
  if (steps_.empty()) return "no step since the start had a finite loss and finite gradients";
  if (steps_.size() == 1) return std::nullopt;
  const GoodStep& last = steps_.back();
  std::vector<double> losses, norms;
  for (const GoodStep& step : steps_) {
    if (&step == &last) break;
    losses.push_back(step.loss);
    norms.push_back(step.grad_norm);
  }
  // Losses of preference training may be near 0 or negative, where a ratio means nothing.
  constexpr double kSmallLoss = 0.1;
  const double usual_loss = median(std::move(losses)), usual_norm = median(std::move(norms));
  if (usual_loss > kSmallLoss && last.loss > kLossGrowth * usual_loss)
    return fmt::format("the loss had grown from {:.4g} to {:.4g}", usual_loss, last.loss);
  if (last.grad_norm > kNormGrowth * usual_norm)
    return fmt::format("the gradient norm had grown from {:.4g} to {:.4g}", usual_norm, last.grad_norm);
  return std::nullopt;
}

bool StepHistory::is_lost(double parameter_norm) const {
  return !std::isfinite(parameter_norm) || (start_norm_ > 0 && parameter_norm > kLostGrowth * start_norm_);
}

std::string StepHistory::last_in_words() const {
  if (steps_.empty()) return "none since the start";
  const GoodStep& last = steps_.back();
  return fmt::format("step {}: loss {:.4g}, gradient norm {:.4g}, learning rate {:.3g}", last.number, last.loss,
                     last.grad_norm, last.learning_rate);
}

std::string samples_in_words(const std::vector<int64_t>& samples, int64_t first, int64_t count) {
  if (samples.empty()) return fmt::format("samples {} to {} in the order of training", first, first + count - 1);
  std::vector<std::string> numbers;
  for (const int64_t sample : samples) numbers.push_back(std::to_string(sample));
  return fmt::format("samples {} of the training data (counted from 0)", list_in_words(numbers, 8));
}

}  // namespace megalith::train

// Two paths for a non-finite value, by OnNonFinite: kThrow ends the run here with the exact place; kRerun hands the
// value to the RerunMachine, which also wants the values that are fine, to compare them in a rerun.
#include "megalith/train/faults/result_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/log.h"

namespace megalith::train {

namespace {

constexpr double kGradientTolerance = 0.001;  // the reference's value: reductions on a GPU differ from run to run
constexpr const char* kNanLoss = "found NaN in local forward loss calculation";
constexpr const char* kInfLoss = "found Inf in local forward loss calculation";

// check_for_nan decides whether anything happens at all, the mode what.
OnNonFinite policy_of(const RerunSettings& settings) {
  if (!settings.check_for_nan) return OnNonFinite::kSkipStep;
  return settings.mode == config::RerunMode::kDisabled ? OnNonFinite::kThrow : OnNonFinite::kRerun;
}

}  // namespace

ResultCheck::ResultCheck(const RerunSettings& settings, RerunMachine& machine, const RejectionTracker* tracker,
                         int rank)
    : settings_(settings), on_non_finite_(policy_of(settings)), machine_(machine), tracker_(tracker), rank_(rank) {}

bool ResultCheck::is_of_loss(const std::string& message) { return message == kNanLoss || message == kInfLoss; }

// Notes the event for the next start before it throws: the run ends here.
template <typename E>
void ResultCheck::fail(const char* what, const std::string& text) const {
  if (tracker_ != nullptr) tracker_->append(step_, "rerun_disabled", std::nan(""), fmt::format("{}: {}", what, text));
  throw E(text);
}

// ---- Losses ----

void ResultCheck::begin(int64_t step, size_t microbatches) {
  step_ = step;
  microbatches_ = microbatches;
  losses_.clear();
}

void ResultCheck::add_loss(const MicrobatchLoss& loss) {
  losses_.push_back({loss.on_host ? *loss.on_host : ops::HostScalar(loss.sum), loss.count});
  // On the CPU reading costs nothing, so a bad loss is found before its gradient reaches another rank.
  if (on_non_finite_ == OnNonFinite::kThrow && loss.sum.is_cpu()) require_finite_losses();
}

void ResultCheck::check_losses() {
  if (on_non_finite_ == OnNonFinite::kThrow) require_finite_losses();
  if (on_non_finite_ != OnNonFinite::kRerun && !settings_.check_for_spiky_loss) return;
  for (size_t i = 0; i < losses_.size(); ++i) validate_loss(i);
}

// Values that are fine are passed on, too: the machine counts calls to find the same value again in a rerun.
void ResultCheck::validate_loss(size_t microbatch) {
  const Loss& loss = losses_[microbatch];
  const double mean = loss.sum.value() / static_cast<double>(std::max<int64_t>(loss.count, 1));
  const auto validate = [&](const char* message, bool rejected, bool fatal) {
    machine_.validate({.message = message,
                       .value = mean,
                       .rejected = rejected,
                       .fatal = fatal,
                       .where = fmt::format("micro-batch {} of {}", microbatch + 1, microbatches_)});
  };
  if (on_non_finite_ == OnNonFinite::kRerun) {
    validate(kNanLoss, std::isnan(mean), /*fatal=*/true);
    validate(kInfLoss, std::isinf(mean), /*fatal=*/true);
  }
  if (settings_.check_for_spiky_loss) validate("Spiky loss", machine_.is_spike("loss", mean), /*fatal=*/false);
}

void ResultCheck::require_finite_losses() const {
  for (size_t i = 0; i < losses_.size(); ++i)
    if (!std::isfinite(losses_[i].sum.value()))
      fail<NonFiniteLoss>("loss", describe(i) +
                                      "; check the data of this step and the learning rate"
                                      " (set check_for_nan_in_loss_and_grad=false to skip such steps instead)");
}

// Called after the step's numbers have been read, so the losses are on the host by then.
void ResultCheck::warn_of_skipped_step() const {
  for (size_t i = 0; i < losses_.size(); ++i)
    if (!std::isfinite(losses_[i].sum.value())) log_warning("{}; the step is skipped", describe(i));
}

std::string ResultCheck::describe(size_t microbatch) const {
  return fmt::format("the loss of micro-batch {} of {} in step {} on rank {} is {}", microbatch + 1, microbatches_,
                     step_, rank_, losses_[microbatch].sum.value());
}

// ---- Veto ----

// A rank whose values are not validated, or only lead to a skipped step, vetoes nothing: the optimizer looks at the
// norm.
at::Tensor ResultCheck::veto(std::span<const MicrobatchLoss> losses, bool unread, at::Device device) const {
  const at::Tensor veto = at::full({1}, machine_.rejected() ? 1.0 : 0.0, at::TensorOptions(at::kDouble).device(device));
  const bool rejects = throws() || (on_non_finite_ == OnNonFinite::kRerun && machine_.validates());
  if (!unread || !rejects) return veto;
  std::vector<at::Tensor> bad;
  for (const MicrobatchLoss& loss : losses) bad.push_back(loss.sum.detach().isfinite().logical_not());
  for (const optim::DistributedDataParallel* chunk : chunks_)
    for (const auto& buffer : chunk->buffers())
      for (const at::Tensor& flag : buffer->flags_on_device()) bad.push_back(flag.ne(0));
  return bad.empty() ? veto : veto + at::stack(bad).sum();
}

// ---- Gradients ----

// Whether values are needed beyond the flag `finite`, which the buffers compute anyway.
bool ResultCheck::reads_gradients() const {
  return settings_.check_for_large_grads ||
         (on_non_finite_ == OnNonFinite::kRerun && settings_.mode == config::RerunMode::kReportDeterminismStats);
}

void ResultCheck::watch(std::span<optim::DistributedDataParallel* const> chunks) {
  chunks_.assign(chunks.begin(), chunks.end());
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk)
    chunks[chunk]->set_gradient_check(
        {.look = [this, chunk](const optim::BucketGradients& gradients) { check_gradients(gradients, chunk); },
         .reads = reads_gradients()});
}

void ResultCheck::check_gradients(const optim::BucketGradients& gradients, size_t chunk) {
  if (on_non_finite_ == OnNonFinite::kThrow && !gradients.finite) {
    require_finite_losses();  // a bad loss would be the cause
    // After the reduction the part with the NaN may belong to another rank. All ranks know of the veto, so this one
    // must tell.
    fail<optim::NonFiniteGradient>(
        "gradient", describe_non_finite(gradients).value_or(
                        fmt::format("rank {}: gradients of {} of chunk {} were NaN or infinite before they were"
                                    " reduced",
                                    rank_, gradients.name(), chunk)));
  }
  if (on_non_finite_ != OnNonFinite::kRerun && !settings_.check_for_large_grads) return;
  const std::string bucket = fmt::format("{} of chunk {}", gradients.name(), chunk);
  double norm = gradients.finite ? 0 : std::nan("");
  if (reads_gradients())
    norm = at::linalg_vector_norm(gradients.values(), 2, std::nullopt, false, at::kFloat).item<double>();
  if (on_non_finite_ == OnNonFinite::kRerun)
    machine_.validate(
        {.message = fmt::format("found NaN or Inf in the local gradients of {} before they are reduced", bucket),
         .value = norm,
         .rejected = !gradients.finite,
         .tolerance = kGradientTolerance});
  if (settings_.check_for_large_grads)
    machine_.validate({.message = fmt::format("found unexpectedly large gradients in {}", bucket),
                       .value = norm,
                       .rejected = machine_.is_spike("grads of " + bucket, norm),
                       .tolerance = kGradientTolerance,
                       .fatal = false});
}

}  // namespace megalith::train

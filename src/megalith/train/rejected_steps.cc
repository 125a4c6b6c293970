// Trainer's treatment of results that are not finite: what is said of a rejected step, and which states are saved.
#include <fmt/format.h>

#include "megalith/train/faults/divergence.h"
#include "megalith/train/faults/rerun_guard.h"
#include "megalith/train/trainer.h"

namespace megalith::train {

// A value that came out the same again and would have to be judged on another device is explained by the steps before
// it, if they show that the run was diverging: then no device is at fault, and a restart would only repeat it.
RerunExit Trainer::explained(const RerunExit& exit, const data::StepBatch& batch, int64_t number) {
  if (!exit.facts().save) return exit;  // the verdict does not depend on another device
  model_->finish_param_gather();
  const auto growth = history_->growth(model_->optimizer().parameter_norm());
  std::vector<int64_t> samples;
  if (const auto& sampler = setup_.train_data->sampler)
    if (const auto step = sampler->step(position_.position, batch.samples)) samples = step->samples;
  const std::string facts = fmt::format("Last good step: {}. Data of step {}: {}.", history_->last_in_words(), number,
                                        samples_in_words(samples, position_.consumed_samples, batch.samples));
  if (!growth) return {exit.facts(), fmt::format("{}. {}", exit.what(), facts)};
  RerunExit::Facts diverged = exit.facts();
  diverged.exit_code = kExitResultRejected;
  diverged.save = false;
  return {diverged,
          fmt::format("training has diverged: {}, and step {} gives NaN or an infinity, also when it is run again. {}"
                      " Use a lower learning_rate, a longer warm-up (warmup_steps) or stricter clipping"
                      " (max_grad_norm), look at these samples, and continue from a checkpoint that was written before"
                      " the growth (exit code {})",
                      *growth, number, facts, kExitResultRejected)};
}

// The step was not taken: parameters, random streams and data are still as they were before it, so that is what a save
// point written here contains.
void Trainer::save_for_rerun(const RerunExit& exit) {
  if (!exit.facts().save || settings_.save.output_dir.empty()) return;
  state_.rerun_state = exit.facts().state;
  saver_.require(true);
  save_point();
  saver_.finish();
}

// A run must never continue from a state that cannot train. Gradients that overflow are usual while a loss scale is
// being found, and leave the state as it was.
std::string Trainer::flaw_of_state() {
  const bool overflow_is_usual = model_->loss_scale() != 1;
  if (outcome_ == StepOutcome::kLossNotFinite || (outcome_ == StepOutcome::kGradientsNotFinite && !overflow_is_usual))
    return fmt::format("the loss or a gradient of step {} is NaN or infinite", state_.global_step);
  if (history_->is_lost(model_->optimizer().parameter_norm()))
    return "parameters are NaN, infinite or far too large; lower learning_rate";
  return "";
}

}  // namespace megalith::train

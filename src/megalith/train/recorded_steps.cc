// Records that a Trainer makes of some steps besides numbers: texts of the model, and how its weights and gradients are
// distributed. Neither changes what is computed: a run gives the same losses with and without them.
#include "megalith/train/trainer.h"

namespace megalith::train {

// Called after the step's line; the time that it takes is not part of a step.
void Trainer::record_samples(const data::StepBatch& batch) {
  const TextSampler* const sampler = setup_.text_sampler.get();
  if (sampler == nullptr || !sampler->due(state_.global_step)) return;
  const auto span = trace_.span({.name = "generate-samples", .level = 0});
  setup_.heartbeat.enter(comm::Section::kEvaluation, state_.global_step);
  model_->finish_param_gather();
  const TextSamples samples = sampler->take(models_, batch);
  TrainerEvent event = make_event();
  event.samples = &samples;
  callbacks_.call(&TrainerCallback::on_samples, event);
}

// Called when gradients are complete and the update has not begun. A step that is run again is counted again.
void Trainer::count_values() {
  if (!histogram_counter_ || (state_.global_step + 1) % settings_.histogram_interval != 0) return;
  const auto span = trace_.span({.name = "histograms", .level = 1});
  counts_ = histogram_counter_->count(model_->loss_scale());
}

// Called when the step is over: the host has waited for its loss, so reading the counts costs no further wait. A step
// of iterations_to_skip has none.
void Trainer::record_histograms() {
  if (!counts_) return;
  const optim::Histograms histograms = counts_->read();
  counts_.reset();
  TrainerEvent event = make_event();
  event.histograms = &histograms;
  callbacks_.call(&TrainerCallback::on_histograms, event);
}

}  // namespace megalith::train

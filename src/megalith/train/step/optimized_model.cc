// Each chunk of the model has its own gradient buffers (DistributedDataParallel); one optimizer and one schedule serve
// all of them. Construction moves parameters into the buffers, which is why weights must be loaded before, or refreshed
// by reload_parameters().
#include "megalith/train/step/optimized_model.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/optim/finalize.h"
#include "megalith/train/step/overlap_update.h"

namespace megalith::train {

namespace {

std::vector<nn::Parameter*> parameters_of(model::GptModel& chunk) {
  std::vector<nn::Parameter*> all;
  for (const auto& parameter : chunk.parameters().all()) all.push_back(parameter.get());
  return all;
}

}  // namespace

OptimizedModel::OptimizedModel(model::VirtualModels& models, const UpdateSettings& settings,
                               optim::RunSchedule schedule, const parallel::ParallelContext& context,
                               TraceRecorder* trace)
    : models_(models),
      context_(context),
      schedule_(std::move(schedule)),
      scaler_(settings.scaler),
      gathers_in_forward_(settings.param_gather != optim::ParamGather::kInStep) {
  for (size_t chunk = 0; chunk < models.size(); ++chunk) {
    const auto gradients = optim::settings_of_chunk(settings.gradients, static_cast<int>(chunk));
    own_chunks_.push_back(
        std::make_unique<optim::DistributedDataParallel>(parameters_of(models[chunk]), gradients, context));
    chunks_.push_back(own_chunks_.back().get());
  }
  // Order matters: the gradient buffers take over the parameters' storage, and the optimizer refers to the buffers.
  optimizer_ = std::make_unique<optim::Optimizer>(chunks_, settings.optimizer, context, settings.param_gather);
  scheduler_ = std::make_unique<optim::ParamScheduler>(schedule_.schedule, schedule_.groups, schedule_.load);
  apply_rates();
  overlaps_updates_ = !gathers_in_forward_ && overlap_updates(*optimizer_, models, settings.overlap, trace);
  // Each part of the model waits for its own parameters just before it uses them.
  for (size_t chunk = 0; chunk < models.size() && gathers_in_forward_; ++chunk)
    models[chunk].set_before_part(
        [ddp = chunks_[chunk]](std::span<nn::Parameter* const> part) { ddp->wait_for_params(part); });
  if (overlaps_updates_)
    models[0].set_before_part([this](std::span<nn::Parameter* const> part) { optimizer_->wait_for_params(part); });
}

// The model outlives this object and must not call into its buffers any more.
OptimizedModel::~OptimizedModel() {
  for (size_t chunk = 0; chunk < models_.size(); ++chunk) models_[chunk].set_before_part(nullptr);
}

// The optimizer knows nothing of schedules: each parameter group just has a rate and a decay.
void OptimizedModel::apply_rates() {
  for (optim::ParamGroup& group : optimizer_->groups()) {
    const size_t rates = group.decoupled_lr ? 1 : 0;  // schedule 1 is for input and output layers
    group.lr = scheduler_->lr(rates);
    group.weight_decay = scheduler_->weight_decay(rates);
  }
}

void OptimizedModel::zero_grad() {
  for (optim::DistributedDataParallel* chunk : chunks_) chunk->zero_grad();
}

void OptimizedModel::finalize_gradients(std::optional<int64_t> tokens) {
  optim::finalize_gradients(chunks_, context_, tokens);
}

void OptimizedModel::check_gradients() const {
  for (const optim::DistributedDataParallel* chunk : chunks_) chunk->check_gradients();
}

bool OptimizedModel::checks_gradients_later() const {
  return std::ranges::any_of(chunks_, &optim::DistributedDataParallel::checks_later);
}

// A skipped step (fp16 overflow) changes only the loss scale: neither parameters nor schedule advance.
UpdateResult OptimizedModel::update(int64_t samples, const optim::GradStats& stats, bool begun) {
  UpdateResult result{.step = {}, .learning_rate = scheduler_->lr(0), .loss_scale = scaler_.scale()};
  result.step = optimizer_->finish_step(scaler_, stats, begun);
  check<ConfigError>(scaler_.is_finite(),
                     "the loss scale exceeds the largest fp32 number; set loss_scale to a constant, or lower"
                     " initial_loss_scale");
  if (result.step.updated) {
    scheduler_->step(schedule_.increment(samples));
    apply_rates();
  }
  return result;
}

void OptimizedModel::finish_param_gather() {
  optimizer_->finish_update();
  for (optim::DistributedDataParallel* chunk : chunks_) chunk->finish_param_gather();
}

}  // namespace megalith::train

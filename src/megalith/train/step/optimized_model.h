// OptimizedModel: the chunks of this rank with everything that changes them: gradient buffers, optimizer, schedule and
// loss scale. What a checkpoint keeps of a run, besides the data's position and the random streams, is in here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/optimizer.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

struct UpdateResult {
  optim::StepResult step;
  double learning_rate = 0;  // of this step
  float loss_scale = 1;      // with which its gradients were computed
};

// One thread a rank. `models` and `context` outlive it; while it lives, parameters are views of its buffers, so there
// is one of a model at a time.
class OptimizedModel {
 public:
  OptimizedModel(model::VirtualModels& models, const UpdateSettings& settings, optim::RunSchedule schedule,
                 const parallel::ParallelContext& context);
  ~OptimizedModel();
  OptimizedModel(const OptimizedModel&) = delete;
  OptimizedModel& operator=(const OptimizedModel&) = delete;

  // A step: zero_grad; forward and backward of all micro-batches, the loss times loss_scale(); finalize_gradients;
  // check_gradients; update.
  void zero_grad();
  float loss_scale() const { return scaler_.scale(); }
  // `tokens`: see optim::finalize_gradients; nothing unless the loss is per token.
  void finalize_gradients(std::optional<int64_t> tokens);
  // The NaN checks that finalize_gradients may have left for later (optim::ParamBuffer::check_gradients).
  void check_gradients() const;
  // The optimizer's step and, unless it was skipped, the schedule's. `samples`: of all ranks in this step. Throws
  // ConfigError when the loss scale has grown beyond all numbers.
  UpdateResult update(int64_t samples, const std::optional<optim::BegunStep>& begun = std::nullopt);
  // The update may be handed to the device before check_gradients, which then waits behind it and not before it. It
  // takes place only if all gradients are finite. See optim::Optimizer::begin_step.
  bool begins_updates() const { return optimizer_->begins_steps(); }
  std::optional<optim::BegunStep> begin_update() { return optimizer_->begin_step(scaler_); }

  // With overlap_param_gather parameters are still on their way after update(): the model waits for them part by part.
  // Whoever reads them otherwise (evaluation, export) calls this first.
  void finish_param_gather();
  // Weights were loaded behind its back.
  void reload_parameters() { optimizer_->reload_main_params(); }

  model::VirtualModels& models() { return models_; }
  const std::vector<optim::DistributedDataParallel*>& chunks() const { return chunks_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::ParamScheduler& scheduler() { return *scheduler_; }
  optim::GradScaler& scaler() { return scaler_; }
  // The schedule has been loaded: hands its rates to the optimizer. The constructor and update() do it themselves.
  void apply_rates();

 private:
  model::VirtualModels& models_;
  const parallel::ParallelContext& context_;
  const optim::RunSchedule schedule_;
  std::vector<std::unique_ptr<optim::DistributedDataParallel>> own_chunks_;
  std::vector<optim::DistributedDataParallel*> chunks_;  // the same
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::ParamScheduler> scheduler_;  // of RunSchedule::groups
  optim::GradScaler scaler_;
};

}  // namespace megalith::train

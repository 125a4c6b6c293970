// OptimizedModel: this rank's chunks together with everything that changes them: gradient buffers, optimizer, schedule
// and loss scale. A checkpoint of a run is this plus the position in the data and the random streams.
//
//   model.zero_grad();
//   … forward and backward of all micro-batches, with the loss times model.loss_scale() …
//   model.finalize_gradients(tokens);
//   … add up model.norm_terms() over the world …
//   model.check_gradients();
//   model.update(samples, stats);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/optimizer.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// The outcome of one update. The same on all ranks.
struct UpdateResult {
  optim::StepResult step;
  double learning_rate = 0;  // the rate of this step
  float loss_scale = 1;      // the scale with which its gradients were computed
};

// One thread per rank. `models` and `context` outlive it. While it lives, parameters are views of its buffers, so a
// model can have only one at a time.
class OptimizedModel {
 public:
  // Moves the parameters into its buffers, and allocates gradients and optimizer state.
  // `trace`, which may be nullptr, shows updates beside forward passes.
  OptimizedModel(model::VirtualModels& models, const UpdateSettings& settings, optim::RunSchedule schedule,
                 const parallel::ParallelContext& context, TraceRecorder* trace = nullptr);
  ~OptimizedModel();
  OptimizedModel(const OptimizedModel&) = delete;
  OptimizedModel& operator=(const OptimizedModel&) = delete;

  // The order of a step: zero_grad; forward and backward of all micro-batches, with the loss times loss_scale();
  // finalize_gradients; norm_terms; [begin_update]; check_gradients; update.
  void zero_grad();
  float loss_scale() const { return scaler_.scale(); }
  // Reduces the gradients. `tokens` as in optim::finalize_gradients; std::nullopt unless the loss is per token.
  void finalize_gradients(std::optional<int64_t> tokens);
  // Runs the NaN checks that finalize_gradients may have deferred (optim::ParamBuffer::check_gradients).
  void check_gradients() const;
  bool checks_gradients_later() const;  // whether they are deferred; the same on all ranks
  // Runs the optimizer's step and, unless it was skipped, the schedule's. `samples` counts this step's samples on all
  // ranks. Throws ConfigError when the loss scale has overflowed. `stats` and `begun`: see Optimizer::finish_step.
  UpdateResult update(int64_t samples, const optim::GradStats& stats, bool begun);
  // An update may be queued on the device before check_gradients, which then waits after it instead of before it. It
  // takes effect only if `squares` is finite. See optim::Optimizer::begin_step.
  at::Tensor norm_terms() const { return optimizer_->norm_terms(); }
  bool begins_updates() const { return optimizer_->begins_steps(); }
  void begin_update(const at::Tensor& squares) { optimizer_->begin_step(scaler_, squares); }

  // Tokens of this rank in the first micro-batch after the next update, about; 0 for a forward pass that does not wait
  // part by part (a graph): see optim::Optimizer::expect_tokens.
  void expect_tokens(int64_t tokens) { optimizer_->expect_tokens(tokens); }
  // With overlap_param_gather, and where updates run beside forward passes, parameters are still in flight after
  // update(), and the model waits for them part by part. Any other reader (evaluation, export) must call this first.
  void finish_param_gather();
  void finish_update() const {
    optimizer_->finish_update();
  }  // without gathers, which other ranks have to take part in
  bool gathers_in_forward() const { return gathers_in_forward_; }  // overlap_param_gather
  // Call after loading weights into the model: refreshes the optimizer's fp32 copies.
  void reload_parameters() { optimizer_->reload_main_params(); }

  // The parts, for checkpoints and tests.
  model::VirtualModels& models() { return models_; }
  const std::vector<optim::DistributedDataParallel*>& chunks() const { return chunks_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::ParamScheduler& scheduler() { return *scheduler_; }
  optim::GradScaler& scaler() { return scaler_; }
  // Call after loading the schedule: passes its rates to the optimizer. The constructor and update() do so themselves.
  void apply_rates();

 private:
  model::VirtualModels& models_;
  const parallel::ParallelContext& context_;
  const optim::RunSchedule schedule_;
  std::vector<std::unique_ptr<optim::DistributedDataParallel>> own_chunks_;
  std::vector<optim::DistributedDataParallel*> chunks_;  // pointers to own_chunks_
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::ParamScheduler> scheduler_;  // drives RunSchedule::groups
  optim::GradScaler scaler_;
  const bool gathers_in_forward_;
  bool overlaps_updates_ = false;
};

}  // namespace megalith::train

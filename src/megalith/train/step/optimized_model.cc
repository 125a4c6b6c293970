#include "megalith/train/step/optimized_model.h"

#include "megalith/base/error.h"
#include "megalith/optim/finalize.h"

namespace megalith::train {

namespace {

std::vector<nn::Parameter*> parameters_of(model::GptModel& chunk) {
  std::vector<nn::Parameter*> all;
  for (const auto& parameter : chunk.parameters().all()) all.push_back(parameter.get());
  return all;
}

optim::OptimizerSettings settings_of(const config::TrainingArguments& args) {
  optim::OptimizerSettings settings = optim::optimizer_settings(args.optimizer);
  settings.count_zeros = args.logging.log_num_zeros_in_grad;
  // LoRA+ (Hayou et al., 2024): B learns faster; embeddings at a rate of their own.
  const double rate = args.optimizer.learning_rate.value_or(0);
  if (args.lora.loraplus_lr_ratio && rate > 0)
    settings.groups.multipliers = {{"embedding.lora_b", args.lora.loraplus_lr_embedding / rate},
                                   {".lora_b", *args.lora.loraplus_lr_ratio}};
  return settings;
}

std::vector<optim::RateGroup> rate_groups(const config::TrainingArguments& args, const optim::LrSchedule& schedule) {
  std::vector<optim::RateGroup> groups{{}};
  if (const auto decoupled = optim::decoupled_group(args.optimizer, schedule)) groups.push_back(*decoupled);
  return groups;
}

}  // namespace

OptimizedModel::OptimizedModel(model::VirtualModels& models, const config::TrainingArguments& args,
                               optim::RunSchedule schedule, const parallel::ParallelContext& context,
                               std::shared_ptr<const optim::UpdateRule> rule)
    : models_(models),
      context_(context),
      schedule_(std::move(schedule)),
      scaler_(optim::GradScaler::from(args.precision)) {
  for (size_t chunk = 0; chunk < models.size(); ++chunk) {
    const auto settings = optim::ddp_settings(args.ddp, args.precision, args.optimizer.use_distributed_optimizer,
                                              context.is_first_stage(), static_cast<int>(chunk));
    own_chunks_.push_back(
        std::make_unique<optim::DistributedDataParallel>(parameters_of(models[chunk]), settings, context));
    chunks_.push_back(own_chunks_.back().get());
  }
  optim::OptimizerSettings settings = settings_of(args);
  if (rule) settings.rule = std::move(rule);
  optimizer_ = std::make_unique<optim::Optimizer>(chunks_, std::move(settings), context, args.ddp.overlap_param_gather);
  scheduler_ = std::make_unique<optim::ParamScheduler>(schedule_.schedule, rate_groups(args, schedule_.schedule),
                                                       schedule_.load);
  apply_rates();
  if (!args.ddp.overlap_param_gather) return;
  for (size_t chunk = 0; chunk < models.size(); ++chunk)
    models[chunk].set_before_part(
        [ddp = chunks_[chunk]](std::span<nn::Parameter* const> part) { ddp->wait_for_params(part); });
}

OptimizedModel::~OptimizedModel() {
  for (size_t chunk = 0; chunk < models_.size(); ++chunk) models_[chunk].set_before_part(nullptr);
}

void OptimizedModel::apply_rates() {
  for (optim::ParamGroup& group : optimizer_->groups()) {
    const size_t rates = group.decoupled_lr ? 1 : 0;
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

UpdateResult OptimizedModel::update(int64_t samples, const std::optional<optim::BegunStep>& begun) {
  UpdateResult result{.step = {}, .learning_rate = scheduler_->lr(0), .loss_scale = scaler_.scale()};
  result.step = optimizer_->step(scaler_, begun);
  check<ConfigError>(scaler_.is_finite(),
                     "the loss scale has grown beyond the largest fp32 number; set loss_scale to a constant, or lower"
                     " initial_loss_scale");
  if (result.step.updated) {
    scheduler_->step(schedule_.increment(samples));
    apply_rates();
  }
  return result;
}

void OptimizedModel::finish_param_gather() {
  for (optim::DistributedDataParallel* chunk : chunks_) chunk->finish_param_gather();
}

}  // namespace megalith::train

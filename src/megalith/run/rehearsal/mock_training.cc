// The parts of a Trainer that a step needs, without those that read, write and report.
#include "megalith/run/rehearsal/mock_training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/nn/moe/routing.h"
#include "megalith/run/load_model.h"

namespace megalith::run {

namespace {

// Labels of sequences that are scored as a whole: 0 at the last token of each (data/scored_rows.h). That is a class, a
// number and a margin.
at::Tensor labels_of_ends(const at::Tensor& ids, int64_t length) {
  at::Tensor labels = at::full_like(ids, data::kIgnoredLabel);
  labels.view({-1, length}).select(1, length - 1).zero_();
  return labels;
}

// A full batch of whole sequences; replicas have different ones.
data::StepBatch random_batch(const plan::RunShape& shape, int dp_rank) {
  data::StepBatch step;
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1 + dp_rank));
  const int64_t tokens = shape.sequences() * shape.sequence_length;
  const auto draw = [&] {
    return at::randint(0, shape.model->vocab_size, {tokens}, generator, at::TensorOptions(at::kLong));
  };
  for (int64_t i = 0; i < shape.microbatches; ++i) {
    data::MicroBatch batch;
    batch.ids = draw();
    const bool scores = shape.model->num_labels > 0;
    batch.labels = scores ? labels_of_ends(batch.ids, shape.sequence_length) : draw();
    batch.layout = ops::SequenceLayout::dense(shape.sequences(), shape.sequence_length);
    batch.samples = shape.micro_batch_size;
    batch.sequences = shape.sequences();
    batch.real_tokens = tokens;
    batch.loss_tokens = scores ? batch.sequences : tokens;
    batch.preference = shape.answers == 2;
    step.microbatches.push_back(std::move(batch));
  }
  step.samples = static_cast<int64_t>(shape.global_batch());
  return step;
}

// A new adapter on random weights, where one is trained.
model::VirtualModels fresh_model(const RunSettings& settings, const plan::RunShape& shape,
                                 parallel::ParallelContext& context) {
  const model::ModelSettings here = settings_on(settings.model, context.device());
  if (!shape.options.adapter) return model::AutoModel::from_config(*shape.model, here, context);
  model::ModelOptions options = here.options;
  options.adapter = model::resolve_targets(*shape.options.adapter, *shape.model);
  options.adapter->pissa.reset();  // a start from principal parts takes long and changes neither sizes nor speed
  model::VirtualModels models(*shape.model, options, model::chunk_places(here.stages, *shape.model, context), context);
  models.initialize_parameters(here.seed);
  model::initialize_adapter(models, here.seed);
  return models;
}

// Returns the choices of every router, equal on all ranks of a stage. Routers of random weights prefer some experts:
// attention gives tokens more in common than they differ in, so that a few thousand tokens choose as a few would.
// Those that were trained to use all experts have no such preference, and random numbers stand for their scores.
std::vector<std::pair<const nn::Router*, at::Tensor>> balanced_choices(const model::VirtualModels& models,
                                                                       const plan::RunShape& shape, at::Device device) {
  std::vector<std::pair<const nn::Router*, at::Tensor>> choices;
  const auto tokens = static_cast<int64_t>(shape.shard_tokens());
  for (const auto& chunk : models)
    for (const model::GptModel::RouterPlace& place : chunk->routers()) {
      const nn::RouterShape& router = place.router->shape();
      if (router.replay) continue;  // repeats its own
      const at::Tensor scores = at::randn({tokens, router.experts}, at::detail::createCPUGenerator(1 + choices.size()),
                                          at::TensorOptions(at::kFloat));
      choices.emplace_back(place.router, nn::choose_experts(scores, router, {}, /*training=*/false).experts.to(device));
    }
  return choices;
}

}  // namespace

MockTraining::MockTraining(const RunSettings& settings, const plan::RunShape& shape, parallel::ParallelContext& context,
                           TraceRecorder& trace, const std::optional<ScoringPlan>& scoring)
    : settings_(settings),
      shape_(shape),
      context_(context),
      trace_(trace),
      models_(fresh_model(settings, shape, context)),
      objective_(scoring ? make_objective(*scoring, context) : std::make_unique<train::Objective>()) {}

void MockTraining::prepare() {
  const train::TrainerSettings& trainer = settings_.trainer;
  const layout::MicrobatchCalculator batches(trainer.batch);
  constexpr int64_t kLength = 1000;  // steps; the rehearsal ends long before the run would
  optimized_ = std::make_unique<train::OptimizedModel>(models_, trainer.update, trainer.schedule(batches, kLength),
                                                       context_, &trace_);
  runner_ = std::make_unique<train::MicrobatchRunner>(models_, trainer.step, context_, *objective_, trace_);
  guard_ = std::make_unique<train::RerunGuard>(trainer.rerun, std::filesystem::path(), context_);
  guard_->watch(*optimized_);
  batch_ = random_batch(shape_, context_.place().dp_rank);
  choices_ = balanced_choices(models_, shape_, context_.device());
}

bool MockTraining::step() {
  // Once per forward; a recomputed layer has two.
  for (const auto& [router, experts] : choices_)
    router->replay(std::vector<at::Tensor>(2 * batch_.microbatches.size(), experts));
  return !train::train_step(*optimized_, *runner_, *guard_, batch_, ++number_, nullptr, {}).skipped();
}

}  // namespace megalith::run

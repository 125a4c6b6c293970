#include "tests/train/trainer_case.h"

#include <gtest/gtest.h>

#include <mutex>

#include "megalith/config/derive.h"
#include "megalith/data/random.h"
#include "megalith/data/token_table.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/model_settings.h"

namespace megalith::testing {

std::vector<data::Sequence> random_sequences(int64_t count, int64_t vocab, uint64_t seed) {
  data::RandomStream random(seed);
  std::vector<data::Sequence> samples;
  for (int64_t s = 0; s < count; ++s) {
    data::Sequence sample;
    const uint64_t length = 5 + random.below(14);
    for (uint64_t i = 0; i < length; ++i) {
      sample.ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
      sample.labels.push_back(i < length / 3 ? data::kIgnoredLabel : sample.ids.back());
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::shared_ptr<const data::Dataset> dataset_of(const std::vector<data::Sequence>& sequences) {
  data::TokenTable table;
  for (const data::Sequence& sequence : sequences) table.append(sequence);
  return data::dataset_of(std::move(table), {});
}

config::TrainingArguments small_arguments() {
  config::TrainingArguments args;
  args.run.finetuning_type = config::FinetuningType::kFull;
  args.run.do_train = true;
  args.run.max_steps = 4;
  args.batch.micro_batch_size = 8;
  args.batch.eval_micro_batch_size = 2;
  args.optimizer.learning_rate = 1e-3;
  args.optimizer.weight_decay = 0.1;
  args.optimizer.adam_beta2 = 0.95;
  args.schedule.lr_scheduler_type = config::HfScheduler::kConstant;
  args.ddp.calculate_per_token_loss = true;
  args.logging.steps = 1;
  args.save.strategy = config::Interval::kNo;
  args.save.output_dir.reset();
  return args;
}

config::TrainingArguments TrainerCase::effective() const {
  config::TrainingArguments sized = args;
  sized.parallel.tp = tp;
  sized.parallel.pp = pp;
  sized.parallel.cp = cp;
  sized.pipeline.vpp = vpp;
  return config::derive(sized).args;
}

train::TrainerSetup TrainerRank::setup(std::shared_ptr<const data::Dataset> train,
                                       std::shared_ptr<const data::Dataset> eval) const {
  train::TrainerSetup setup;
  const int64_t size = train->size();
  setup.train_data = train::numbered_data(std::move(train), {.size = size, .shuffle = false}, collator);
  if (eval) setup.eval_data.push_back({.dataset = std::move(eval), .collator = collator});
  return setup;
}

model::VirtualModels model_for(const std::filesystem::path& folder, const config::TrainingArguments& args,
                               parallel::ParallelContext& context, std::optional<int64_t> vocab_size,
                               const std::vector<int64_t>& new_tokens) {
  model::ModelSettings settings = run::model_settings(args, at::kCPU);
  settings.overrides.vocab_size = vocab_size;
  settings.new_tokens = new_tokens;
  if (args.run.finetuning_type == config::FinetuningType::kLora)
    return model::with_adapter(folder, settings, context, run::adapter_source(args));
  const model::ModelConfig in_files = model::read_model_config(folder);
  const model::ModelConfig config = settings.overrides.applied_to(in_files);
  model::VirtualModels models(config, settings.options, model::chunk_places(settings.stages, config, context), context);
  model::load_weights(models, folder, in_files, 1, new_tokens);
  return models;
}

void run_trainer_ranks(const std::filesystem::path& folder, const TrainerCase& how,
                       const std::function<void(const TrainerRank&)>& body) {
  const config::TrainingArguments args = how.effective();
  const auto run = [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(args, rank.size)));
    context.rng().seed(layout::adapter_seeds(args.seeds.seed, context.grid(), rank.rank));
    model::VirtualModels models = model_for(folder, args, context, how.vocab_size, how.new_tokens);
    data::CollatorOptions collator = how.collator;
    collator.tp = how.tp;
    collator.cp = how.cp;
    body({rank, args, models, data::Collator(collator, how.collate)});
  };
  if (how.gloo)
    run_gloo_ranks(how.ranks(), run);
  else
    run_ranks(how.ranks(), run);
}

std::vector<double> RunLog::numbers(const std::string& name) const {
  std::vector<double> found;
  for (const train::MetricList& line : lines)
    if (const auto value = line.find(name)) found.push_back(*value);
  return found;
}

RunLog run_training(const std::filesystem::path& folder, const TrainerCase& how,
                    const std::vector<data::Sequence>& train, const std::vector<data::Sequence>& eval) {
  SCOPED_TRACE(how.name);
  RunLog result;
  std::mutex mutex;
  std::vector<std::vector<double>> losses;
  run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(train), dataset_of(eval));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::TrainOutput output = trainer.train();
    const size_t training_lines = heard.lines.size();
    const train::MetricList evaluation = trainer.evaluate();
    const std::lock_guard lock(mutex);
    RunLog mine{heard.lines, evaluation, output};
    mine.lines.resize(training_lines);
    losses.push_back(mine.numbers("loss"));
    if (r.rank.rank == 0) result = std::move(mine);
  });
  for (const auto& other : losses) EXPECT_EQ(other, losses.front());
  return result;
}

}  // namespace megalith::testing

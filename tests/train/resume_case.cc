#include "tests/train/resume_case.h"
#include "megalith/run/resolve/trainer_settings.h"

#include <gtest/gtest.h>

#include <mutex>

#include "megalith/checkpoint/manifest.h"
#include "megalith/config/derive.h"
#include "megalith/io/mapped_file.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/model_settings.h"

namespace megalith::testing {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kVocab = 200;  // all golden models have more

// Calls a function with the trainer, which is not there yet when callbacks are made.
class AtBegin : public train::TrainerCallback {
 public:
  AtBegin(train::Trainer*& trainer, const std::function<void(train::Trainer&)>& body)
      : trainer_(trainer), body_(body) {}
  void on_train_begin(train::TrainerEvent&) override { body_(*trainer_); }

 private:
  train::Trainer*& trainer_;
  const std::function<void(train::Trainer&)>& body_;
};

model::VirtualModels models_for(const ResumeRun& run, const config::TrainingArguments& args,
                                parallel::ParallelContext& context) {
  const fs::path golden = golden_folder(run.model);
  const model::ModelSettings settings = run::model_settings(args, context.device());
  if (args.run.finetuning_type == config::FinetuningType::kLora)
    return model::with_adapter(golden, settings, context, run::adapter_source(args, run.checkpoint));
  if (run.checkpoint)
    return model::AutoModel::with_weights(model::read_model_config(golden), *run.checkpoint, settings, context);
  return model::AutoModel::from_pretrained(golden.string(), settings, context);
}

void train_on_rank(const Rank& rank, const TrainerCase& how, const ResumeRun& run,
                   const std::vector<data::Sequence>& samples, train::TrainerState& state) {
  const config::TrainingArguments args = how.effective();
  parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(args, rank.size)));
  context.rng().seed(layout::adapter_seeds(args.seeds.seed, context.grid(), rank.rank));
  model::VirtualModels models = models_for(run, args, context);
  data::CollatorOptions collator = how.collator;
  collator.tp = how.tp;
  collator.cp = how.cp;
  const TrainerRank mine{rank, args, models, data::Collator(collator)};
  train::TrainerSetup setup = mine.setup(dataset_of(samples), dataset_of(random_sequences(5, kVocab, 3)));
  const auto size = static_cast<int64_t>(samples.size());
  setup.train_data =
      train::numbered_data(dataset_of(samples), {.size = size, .shuffle = true, .seed = 5}, mine.collator);
  train::Trainer* made = nullptr;
  if (run.begun) setup.callbacks.push_back(std::make_unique<AtBegin>(made, run.begun));
  if (run.change) run.change(mine, setup);
  if (run.checkpoint)
    setup.resume =
        train::read_resume_point(*run.checkpoint, run::trainer_settings(args, context.grid().shape()), context);
  train::Trainer trainer(models, run::trainer_settings(args, models.context().grid().shape()), std::move(setup));
  made = &trainer;
  const train::TrainOutput output = trainer.train();
  if (run.ended) run.ended(trainer);
  if (rank.rank != 0) return;
  state = trainer.state();
  if (run.output != nullptr) *run.output = output;
}

}  // namespace

config::TrainingArguments resume_arguments(const fs::path& out, int64_t max_steps, int64_t save_steps) {
  config::TrainingArguments args = small_arguments();
  args.run.max_steps = max_steps;
  args.schedule.lr_scheduler_type = config::HfScheduler::kLinear;
  args.schedule.warmup_steps = 1;
  args.save.output_dir = out.string();
  args.save.strategy = config::Interval::kSteps;
  args.save.steps = static_cast<double>(save_steps);
  return args;
}

train::TrainerState run_resumable(const TrainerCase& how, const ResumeRun& run) {
  SCOPED_TRACE(how.name);
  train::TrainerState state;
  const auto samples = run.samples.empty() ? random_sequences(20, kVocab) : run.samples;
  const auto body = [&](const Rank& rank) { train_on_rank(rank, how, run, samples, state); };
  run_ranks(how.ranks(), body);
  return state;
}

void expect_same_tensors(const fs::path& actual, const fs::path& expected, bool with_rng) {
  const auto tensors = [&](const fs::path& folder) {
    std::vector<std::string> names;
    for (const checkpoint::FileRecord& file : checkpoint::read_manifest(folder).files)
      if (file.name.ends_with(".safetensors") && (with_rng || file.name != "rng.safetensors"))
        names.push_back(file.name);
    return names;
  };
  ASSERT_EQ(tensors(actual), tensors(expected));
  for (const std::string& name : tensors(actual)) {
    const io::MappedFile a(actual / name), b(expected / name);
    EXPECT_TRUE(std::ranges::equal(a.bytes(), b.bytes())) << name << " differs";
  }
}

}  // namespace megalith::testing

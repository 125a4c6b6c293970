// The path of `megalith train` (run/run.cc), with the calls of a Python program in place of its fixed order: resolve
// and load in AutoModel.from_pretrained, open data and make the trainer in Trainer(…), train, export.
#include "session.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/load_model.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/output_folder.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/run_report.h"
#include "megalith/run/run_words.h"
#include "megalith/run/samples/text_prompts.h"
#include "megalith/train/saving/save_model.h"
#include "megalith/train/saving/shared_folder.h"
#include "stop_on_signal.h"

namespace megalith::python {

namespace {

namespace fs = std::filesystem;

// Everything that must be closed before the groups go.
struct OpenObjects {
  std::mutex mutex;
  std::vector<Closable*> objects;  // guarded by mutex
};
OpenObjects& open_objects() {
  static OpenObjects open;
  return open;
}

// The groups of the process; nullptr without any.
parallel::ParallelContext*& process_context() {
  static parallel::ParallelContext* context = nullptr;
  return context;
}

// Checks what the options alone tell, and logs notes about them once.
void begin(const Options& options) {
  static const bool once = (keep_freed_memory(), true);
  static_cast<void>(once);
  options.parsed.report.check_runnable();
  run::apply_log_level(options.parsed.args.logging);
}

// Returns the options with another model.
config::TrainingArguments with_model(const Options& options, const std::string& folder_or_name) {
  config::TrainingArguments args = options.parsed.args;
  args.source.model_name_or_path = folder_or_name;
  return args;
}

run::RunPlan resolve_run(const Options& options, const std::string& folder_or_name, bool brings_data) {
  run::LaunchFlags flags;
  flags.check(options.parsed.args.comm);
  return run::resolve({.work = run::Work::kTrain,
                       .options = with_model(options, folder_or_name),
                       .report = options.parsed.report,
                       .world = flags.world(),
                       .begins_run = flags.begins_run(),
                       .restarted = comm::launch_from_env().restarts > 0,
                       .own_datasets = brings_data});
}

// Throws ConfigError unless the groups of this process, if there are any, have these sizes.
void check_groups(const layout::GridShape& wanted) {
  if (!run::is_distribute_initialized() || process_context() == nullptr) return;
  const auto sizes = [](const layout::GridShape& shape) {
    return fmt::format("tp {}, pp {}, cp {}, ep {}, etp {}", shape.tp, shape.pp, shape.cp, shape.ep, shape.expert_tp());
  };
  const std::string here = sizes(process_context()->grid().shape());
  check<ConfigError>(here == sizes(wanted),
                     "the arguments ask for {}, and the groups of this process have {}; call shutdown_megatron() before"
                     " a run in another layout",
                     sizes(wanted), here);
}

// Returns data in the order of the plan.
train::TrainingData in_order(const run::DataPlan& plan, const std::shared_ptr<const data::Dataset>& dataset,
                             const data::CollateFunction& collate) {
  data::SamplerOptions order = plan.order;
  order.size = dataset->size();
  return train::numbered_data(dataset, order, data::Collator(plan.collator, collate));
}

std::string samples_of(const data::Dataset& dataset) {
  return fmt::format("{} sample{}", dataset.size(), dataset.size() == 1 ? "" : "s");
}

}  // namespace

Closable::Closable() {
  const std::scoped_lock lock(open_objects().mutex);
  open_objects().objects.push_back(this);
}

Closable::~Closable() {
  const std::scoped_lock lock(open_objects().mutex);
  std::erase(open_objects().objects, this);
}

std::unique_ptr<run::RunContext> initialize(const Options& options) {
  begin(options);
  auto run = run::initialize_megatron(options.parsed.args, {.dialect = config::Dialect::kTrain, .allow_no_cuda = true});
  process_context() = &run->context();
  return run;
}

void shutdown() {
  std::vector<Closable*> open;
  {
    const std::scoped_lock lock(open_objects().mutex);
    open = open_objects().objects;
  }
  for (auto object = open.rbegin(); object != open.rend(); ++object) (*object)->close();
  process_context() = nullptr;
  run::shutdown_megatron();
}

void report_failure(const std::string& reason) {
  if (!run::is_distribute_initialized() || process_context() == nullptr) return;
  const parallel::ParallelContext& context = *process_context();
  context.world().report_failure(fmt::format("rank {}: {}", context.rank(), reason), context.rank());
}

std::pair<int, int> place_of_process() {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  return {place.rank, place.world_size};
}

LoadedModel::LoadedModel(std::shared_ptr<const Options> options, const std::string& folder_or_name)
    : options_(std::move(options)) {
  const config::DataConfig& data = options_->parsed.args.data;
  brings_data_ = data.dataset.empty() && data.eval_dataset.empty() && !data.tokenized_path;
  begin(*options_);
  plan_ = resolve_run(*options_, folder_or_name, brings_data_);
  check_groups(plan_.settings.runtime.grid);
  run_ = std::make_unique<run::RunContext>(
      plan_.options, plan_.settings, run::InitializeOptions{.dialect = config::Dialect::kTrain, .allow_no_cuda = true});
  run_->finish_mpu_init();
  parallel::ParallelContext& context = run_->context();
  process_context() = &context;
  if (context.rank() == 0)
    for (const std::string& warning : plan_.warnings) log_warning("{}", warning);
  run::make_output_folder(plan_.settings.output);
  const fs::path& output = plan_.settings.output.folder;
  if (!output.empty()) train::check_shared_folder(output, context.world());
  check_memory(plan_.settings, plan_.model.config, context);
  checkpoint_ = run::find_resume(plan_.settings.resume, output, context);
  models_.emplace(run::load_model(plan_.model, plan_.settings.model, context, checkpoint_));
}

void LoadedModel::close() {
  models_.reset();
  run_.reset();
}

model::VirtualModels& LoadedModel::models() {
  check<ConfigError>(models_.has_value(), "the model is closed: shutdown_megatron() has been called");
  return *models_;
}

void LoadedModel::save(const fs::path& folder) {
  train::save_model(models(), plan_.settings.trainer.save, folder, plan_.model.vocabulary.assets(plan_.model.folder));
}

RankTrainer::RankTrainer(std::shared_ptr<LoadedModel> model, OwnTrainerParts parts)
    : model_(std::move(model)), plan_(model_->plan()) {
  model::VirtualModels& models = model_->models();
  parallel::ParallelContext& context = models.context();
  plan_.own.objective = parts.objective;
  plan_.data.collate = parts.file_collate;
  run::RunData data = open_data(parts);
  const std::string lengths = run::check_sample_lengths(data, plan_.data, plan_.model.config);
  if (context.rank() == 0 && !lengths.empty()) log_warning("{}", lengths);
  run::precompute_reference(plan_, context, data);
  const run::RunVocabulary& vocabulary = plan_.model.vocabulary;
  const data::Dataset* prompts = !data.eval.empty() ? data.eval.front().dataset.get()
                                 : data.train       ? data.train->dataset.get()
                                                    : nullptr;
  train::TrainerSetup setup{.train_data = std::move(data.train),
                            .eval_data = std::move(data.eval),
                            .objective = run::make_objective(plan_, models),
                            .text_sampler = run::make_text_sampler(
                                plan_.settings.samples, {vocabulary.tokenizer, vocabulary.tokenizer_folder}, prompts),
                            .stop = &stop_,
                            .heartbeat = comm::Heartbeat(heartbeat_),
                            .assets = vocabulary.assets(plan_.model.folder),
                            .trace = &trace_};
  if (model_->checkpoint())
    setup.resume = train::read_resume_point(*model_->checkpoint(), plan_.settings.trainer, context);
  const run::DataSummary summary{std::move(data.described), plan_.data.request.data.cutoff_len};
  for (auto& callback : run::watch_run(models, plan_.settings, summary, trace_, comm::launch_from_env()))
    setup.callbacks.push_back(std::move(callback));
  if (parts.callbacks) setup.callbacks.push_back(std::move(parts.callbacks));
  trainer_ = std::make_unique<train::Trainer>(models, plan_.settings.trainer, std::move(setup));
}

run::RunData RankTrainer::open_data(OwnTrainerParts& parts) const {
  const bool shows = model_->models().context().rank() == 0;
  if (!model_->brings_data()) {
    check<ConfigError>(!parts.train && parts.eval.empty(),
                       "train_dataset or eval_dataset is given, and the arguments name files as well (dataset,"
                       " eval_dataset or tokenized_path); keep one of them");
    return run::open_run_data(plan_.data, shows);
  }
  run::RunData data;
  if (parts.train) {
    data.train = in_order(plan_.data, parts.train, parts.train_collate);
    data.described.emplace_back("train", samples_of(*parts.train));
  }
  for (OwnTrainerParts::Eval& each : parts.eval) {
    data.described.emplace_back(each.name.empty() ? "evaluation" : "evaluation " + each.name,
                                samples_of(*each.dataset));
    data.eval.push_back(
        {.dataset = each.dataset, .collator = data::Collator(plan_.data.collator, each.collate), .name = each.name});
  }
  return data;
}

void RankTrainer::close() { trainer_.reset(); }

train::Trainer& RankTrainer::trainer() {
  check<ConfigError>(trainer_ != nullptr, "the trainer is closed: shutdown_megatron() has been called");
  return *trainer_;
}

train::TrainOutput RankTrainer::train(bool handles_signals) {
  train::Trainer& trainer = this->trainer();
  parallel::ParallelContext& context = model_->models().context();
  const run::WorldTrace traced(context.world(), trace_);
  std::optional<StopOnSignal> signals;
  if (handles_signals) signals.emplace(stop_);
  received_signal_ = 0;
  train::TrainOutput output;
  const auto facts = [&] { return run::memory_facts(plan_.settings, plan_.model.config, context); };
  run::explain_out_of_memory(plan_.settings.shape, facts, [&] { output = trainer.train(); });
  if (signals) received_signal_ = signals->received();
  run::print_end(context, plan_.settings.reports, trainer.state(), output);
  if (!output.last_save_error.empty()) log_warning("the last checkpoint is missing: {}", output.last_save_error);
  return output;
}

}  // namespace megalith::python
